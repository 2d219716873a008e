"""The kernel kills an engine for want of memory, in its load or in an answer: told apart from a crash, nothing is left.

The engine runs in a real memory cgroup of 200 MB, made for the test; the shell that starts it moves itself into it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import FAKE_ENGINE, Event, Stack, chat, fake, post, stream, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]

LIMIT_BYTES = 200 * 10**6


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup with LIMIT_BYTES of memory: v1, or v2 where that is what the machine has."""
    root = Path("/sys/fs/cgroup")
    v1 = root / "memory"
    folder = (v1 if v1.is_dir() else root) / f"rewarm-test-{os.getpid()}"
    try:
        folder.mkdir()
        limit = "memory.limit_in_bytes" if v1.is_dir() else "memory.max"
        (folder / limit).write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"cannot make a memory cgroup here: {error}")
    yield folder
    folder.rmdir()


def confined(cgroup: Path, *knobs: str, **fields: Any) -> dict[str, Any]:
    engine = [sys.executable, str(FAKE_ENGINE), "--port", "${PORT}", *knobs]
    enter = f'echo $$ > {cgroup}/cgroup.procs && exec "$0" "$@"'
    return {**fake(**fields), "cmd": ["sh", "-c", enter, *engine]}


async def empty(cgroup: Path) -> None:
    await until(lambda: not (cgroup / "cgroup.procs").read_text(), "the cgroup is empty")


@pytest.mark.asyncio
async def test_a_load_that_runs_out_of_memory_says_so(tmp_path: Path, small_cgroup: Path) -> None:
    models = {"big": confined(small_cgroup, "--allocate-mb", "600", load_attempts=1), "good": fake()}
    async with Stack(tmp_path, models) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        status, body, headers = await post(gateway.url, chat("big"))
        assert (status, body["error"]["code"], body["reason"]) == (500, "model_load_failed", "out_of_memory")
        assert headers["x-should-retry"] == "false"
        assert (await post(gateway.url, chat("good")))[0] == 200
        await empty(small_cgroup)


@pytest.mark.asyncio
async def test_an_answer_that_runs_out_of_memory_is_that_engine_s_end_only(tmp_path: Path, small_cgroup: Path) -> None:
    models = {"m": confined(small_cgroup, "--token-delay", "0.05"), "good": fake("--token-delay", "0.05")}
    async with Stack(tmp_path, models) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        assert (await post(gateway.url, chat("good", fake={"token_delay": 0})))[0] == 200
        other: list[Event] = []

        async def neighbour() -> None:
            async for event in stream(gateway.url, chat("good", fake={"tokens": 150})):
                other.append(event)  # noqa: PERF401 -- looked at while it runs

        running = asyncio.create_task(neighbour())
        lines = [event async for event in stream(gateway.url, chat("m", fake={"tokens": 60, "grow_after": 20}))]
        assert lines[-1].line == "data: [DONE]"
        assert lines[-2].data["error"]["code"] == "worker_died"

        async def told_apart() -> bool:
            return "out_of_memory" in gateway.text() or "out_of_memory" in str(await stack.status(gateway))

        await until(told_apart, "the reason is out_of_memory")
        await running
        assert "word149" in "".join(event.content for event in other), "the other model never noticed"
        status, body, _ = await post(gateway.url, chat("m", "next"))
        assert (status, text_of(body)) == (200, "You said: next")
        assert await stack.processes[-1].terminate() == 0
        await empty(small_cgroup)
