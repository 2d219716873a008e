"""Gateway and worker run on uvloop: the commands have it loaded, and on another loop both refuse to run.

Only the two together prove it: a process may have uvloop in its memory and still run another loop, but then it would
not have become ready.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

import gateway
import worker
from fleet import FleetClient
from rewarm.config import parse
from rewarm.paths import Paths
from tests.e2e.stack import Process, Stack, fake

pytestmark = pytest.mark.redis


def _uses_uvloop(process: Process) -> bool:
    return any("uvloop" in mapped.path for mapped in psutil.Process(process.pid).memory_maps())


@pytest.mark.asyncio
async def test_the_commands_run_on_uvloop(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"m": fake()}) as stack:
        await stack.start_redis()
        for process in (await stack.start_gateway(), await stack.start_worker()):
            assert _uses_uvloop(process), process.name


@pytest.mark.parametrize("room", [gateway.run, worker.run_agent])
def test_another_event_loop_is_refused(room: object, tmp_path: Path, redis_url: str) -> None:
    async def start() -> None:
        client = await FleetClient.connect(redis_url, "test-loop", check=False)
        try:
            await room(parse(""), Paths.at(tmp_path), client)  # type: ignore[operator]  # either room's door
        finally:
            await client.close()

    with pytest.raises(RuntimeError, match="uvloop"), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(start())
