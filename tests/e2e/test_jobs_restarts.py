"""`rewarm serve` is restarted again and again under jobs that run and wait: none of it is a failure of their model."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.jobs import Watched, child, watching
from tests.e2e.stack import Process, Stack, chat, fake, lives, post, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(240)]


async def stopped(serve: Process) -> None:
    assert await serve.terminate() == 0


async def stopped_unseen(serve: Process) -> None:
    """The leader is no more when the worker says that it goes: only what lies in Redis tells the next one."""
    child(serve, "gateway").kill()
    await serve.terminate()


async def killed(serve: Process) -> None:
    """With all that it started: as in a power cut."""
    tree = [psutil.Process(serve.pid), *psutil.Process(serve.pid).children(recursive=True)]
    for process in tree:
        process.send_signal(signal.SIGKILL)
    await serve.popen.wait()
    await until(lambda: not any(lives(process) for process in tree), "all of it is dead")


def count_taken(serve: Process) -> int:
    """Attempts at jobs, over all its restarts: they write to the same log."""
    return serve.text().count("event=job-taken")


def more_taken(serve: Process, before: int) -> bool:
    return count_taken(serve) > before


async def no_load_counted(stack: Stack, serve: Process, watched: Watched) -> None:
    found = await watched.jobs.get_many(list(watched.histories))
    assert [job.loads for job in found if job is not None] == [0] * len(found)
    status = await stack.status(serve)
    assert status["models"]["m"].get("failure") is None, status["models"]
    assert status["models"]["m"]["state"] != "failed"


@pytest.mark.parametrize("end", [stopped, stopped_unseen, killed])
@pytest.mark.asyncio
async def test_restarts_while_jobs_run_and_wait(tmp_path: Path, end: Callable[[Process], Awaitable[None]]) -> None:
    model = fake("--token-delay", "0.1", slots=3)
    fields: dict[str, Any] = {"worker": {"shutdown_deadline": "200ms"}, "jobs": {"max_attempts": 20}}
    async with Stack(tmp_path, {"m": model}, **fields) as stack:
        serve = await stack.start_serve()
        async with watching(stack) as watched:
            body = {"messages": [{"role": "user", "content": "long"}], "fake": {"tokens": 3000}}
            taken = 0
            for n in range(4):
                await watched.order(serve.url, f"restarted-{n}", body)
            for _ in range(3):
                await until(partial(more_taken, serve, taken), "one runs, others wait", 40)
                await no_load_counted(stack, serve, watched)
                await end(serve)
                taken = count_taken(serve)
                serve = await stack.start_serve()
            status, answer, _ = await post(serve.url, chat("m", "now"))
            assert (status, text_of(answer)) == (200, "You said: now")
            await no_load_counted(stack, serve, watched)
            assert "model failed" not in serve.text()
            assert watched.ended == 0
        assert await serve.terminate() == 0
