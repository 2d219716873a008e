"""The tests' own fleet of processes leaves nothing behind, even where the tests themselves are killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.stack import ROOT, Stack, fake, lives, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(60)]

# A test run in small: it starts a fleet, wakes its model, and waits to be killed.
RUN = """
import asyncio, sys
from pathlib import Path
from tests.e2e.stack import Stack, chat, fake, post

async def main():
    async with Stack(Path(sys.argv[1]), {"m": fake()}) as stack:
        serve = await stack.start_serve()  # with a Redis of its own
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker(wait=False)
        assert (await post(gateway.url, chat("m")))[0] == 200
        assert (await post(serve.url, chat("m")))[0] == 200
        print(*(process.pid for process in stack.processes), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_nothing_outlives_tests_that_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, str(folder), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    stack = Stack(folder, {"m": fake()})  # only to look
    living: list[psutil.Process] = []
    try:
        assert run.stdout is not None
        async with asyncio.timeout(40):
            started = [psutil.Process(int(pid)) for pid in (await run.stdout.readline()).split()]
        assert len(started) == 4
        assert len(stack.engine_programs()) == 2
        living = [*started, *stack.members()]
        run.send_signal(signal.SIGKILL)
        await run.wait()
        # By pid: Redis writes its title over the environment that it would be found by.
        await until(lambda: not any(map(lives, living)), "Redis, gateways, workers and engines are gone", 10)
    finally:
        if run.returncode is None:
            run.kill()
            await run.wait()
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
