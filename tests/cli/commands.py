"""The command line as its users run it: a process of its own, against a real fleet with the fake engine."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.stack import ROOT, Process, Stack, fake


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


async def start(
    *arguments: str, env: dict[str, str] | None = None, stderr: int = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REWARM_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "rewarm", *arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        env={**clean, **(env or {})},
        preexec_fn=_heed_ctrl_c,
    )


def _heed_ctrl_c() -> None:
    """A shell that runs the tests in its background has its children ignore SIGINT, and theirs as well."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def finished(process: asyncio.subprocess.Process, within_s: float = 60) -> Done:
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        raise AssertionError(f"not ended within {within_s} s\n{out!r}\n{err!r}") from None
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode() if err else "")


async def rewarm(*arguments: str, env: dict[str, str] | None = None, within_s: float = 60) -> Done:
    return await finished(await start(*arguments, env=env), within_s)


async def on_a_terminal(*arguments: str, within_s: float = 60) -> tuple[int, str]:
    """(exit code, everything that was written to the terminal)."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    written = bytearray()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            data = os.read(leader, 65536)
        except OSError:  # nobody has the other end open any more
            data = b""
        written.extend(data)
        if not data:
            loop.remove_reader(leader)
            ended.set()

    process = await start(*arguments, env={"TERM": "xterm-256color", "COLUMNS": "200"}, stderr=follower)
    os.close(follower)
    loop.add_reader(leader, read)
    try:
        done = await finished(process, within_s)
        await asyncio.wait_for(ended.wait(), 5)
    finally:
        loop.remove_reader(leader)
        os.close(leader)
    return done.code, written.decode(errors="replace")


@asynccontextmanager
async def fleet(folder: Path, *knobs: str, **options: Any) -> AsyncIterator[tuple[Stack, Process]]:
    """Redis, a gateway, a worker, and one model ``m`` on the fake engine. ``jobs``, ``keys``: those sections of the
    configuration; ``worker``: whether there is one; all else is the model's."""
    jobs, keys, worker = options.pop("jobs", {}), options.pop("keys", []), options.pop("worker", True)
    async with Stack(folder, {"m": fake(*knobs, **options)}, keys=keys, jobs=jobs) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        if worker:
            await stack.start_worker()
        yield stack, gateway


async def again(stack: Stack, gateway: Process) -> Process:
    """Start a gateway that was killed, at its old address."""
    config = str(stack.folder / f"{gateway.name}.yaml")
    process = await stack.spawn(gateway.name, sys.executable, "-m", "rewarm", "gateway", config, port=gateway.port)
    await stack.healthy(process)
    return process


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def chats(count: int, **fields: Any) -> list[dict[str, Any]]:
    """Bodies that can be told apart; their answer is ``You said: question <n>``."""
    return [{"model": "m", "messages": [{"role": "user", "content": f"question {n}"}], **fields} for n in range(count)]


def write(path: Path, lines: Sequence[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def said(row: dict[str, Any]) -> str:
    content = row["response"]["body"]["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content
