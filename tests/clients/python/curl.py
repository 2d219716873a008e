"""curl, as a person types it, with ``-N`` for the stream and without; ``--fail`` makes an HTTP error an exit status."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from _suite import LIMITS, MESSAGES, Answer, main


def _curl(base_url: str, body: dict[str, Any], *options: str) -> str:
    command = ["curl", "--silent", "--show-error", "--fail", *options, f"{base_url}/chat/completions"]
    command += ["--header", "Content-Type: application/json", "--data", json.dumps(body)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plain(base_url: str, model: str) -> Answer:
    message = json.loads(_curl(base_url, {"model": model, "messages": MESSAGES, **LIMITS}))["choices"][0]["message"]
    return Answer(message["content"], message["role"])


def stream(base_url: str, model: str) -> Answer:
    out = _curl(base_url, {"model": model, "messages": MESSAGES, "stream": True, **LIMITS}, "-N")
    data = [line.removeprefix("data: ") for line in out.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]", data[-1]
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in data[:-1]]
    role = "".join(delta.get("role") or "" for delta in deltas)
    return Answer("".join(delta.get("content") or "" for delta in deltas), role)


if __name__ == "__main__":
    main(None, {"plain": plain, "stream": stream})
