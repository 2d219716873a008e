"""Which client libraries the suite runs, and how: each is a small script in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / ".venv-clients"
SETUP = "run tests/clients/setup.sh"


@dataclass(frozen=True)
class Client:
    name: str  # also the model's, so that each client meets a cold one
    script: str  # in python/ or node/
    environment: str | None = None  # folder under .venv-clients/; None: this interpreter, for what needs no package

    @property
    def command(self) -> list[str]:
        if self.script.endswith(".mjs"):
            return [str(ENVIRONMENTS / "node"), str(HERE / "node" / self.script)]
        python = str(ENVIRONMENTS / self.environment / "bin" / "python") if self.environment else sys.executable
        return [python, str(HERE / "python" / self.script)]

    @property
    def installed(self) -> bool:
        node = self.script.endswith(".mjs")
        return Path(self.command[0]).exists() and (not node or (HERE / "node" / "node_modules").exists())


CLIENTS = (
    Client("openai-python", "openai_chat.py", "openai"),
    Client("openai-python-1", "openai_chat.py", "openai_1"),
    Client("openai-python-1.3", "openai_chat.py", "openai_1_3"),
    Client("openai-node", "openai_chat.mjs"),
    Client("ai-sdk", "ai_sdk.mjs"),
    Client("langchain-python", "langchain_chat.py", "langchain"),
    Client("langchain-js", "langchain_chat.mjs"),
    Client("llama-index", "llama_index_chat.py", "llama_index"),
    Client("litellm", "litellm_chat.py", "litellm"),
    Client("parsers", "parsers.py"),
    Client("curl", "curl.py"),
)


def asking(client: Client) -> Client:
    """Skip the test where it is not installed."""
    if not client.installed:
        pytest.skip(f"{client.name} is not installed: {SETUP}")
    return client


async def run(client: Client, url: str, model: str, within_s: float = 110.0, *, lines: int = 0) -> dict[str, Any]:
    """The script's JSON: ``package``, ``version``, and for each of its ``modes`` text, role, error, seconds. ``lines``:
    how long a batch is, for scripts that have one."""
    process = await asyncio.create_subprocess_exec(
        *client.command,
        f"{url}/v1",
        model,
        *([str(lines)] if lines else []),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # litellm asks GitHub for prices when it is imported, and waits for the answer.
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONWARNINGS": "default"},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), within_s)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, f"{client.name} exited with {process.returncode}:\n{err.decode()[-4000:]}"
    result: dict[str, Any] = json.loads(out.decode().splitlines()[-1])
    return result
