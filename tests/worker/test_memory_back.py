"""Memory of a replica that ends is free when it was measured to be, not when its processes are gone."""

from __future__ import annotations

import asyncio

import pytest

from rewarm.messages import WorkerBeat
from rewarm.states import ReplicaState
from tests.worker.conftest import Rig, RunRig, alive, until

S = ReplicaState
MIB = 2**20

pytestmark = [pytest.mark.redis, pytest.mark.timeout(60), pytest.mark.asyncio]


async def test_a_replica_is_reported_as_stopped_only_once_its_memory_has_come_back(
    rig: RunRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it counts in every heartbeat, so that nobody is told that there is room, or that none is coming."""
    back = asyncio.Event()

    async def comes_late(before_bytes: int, held_bytes: int) -> int:
        await back.wait()
        return held_bytes

    monkeypatch.setattr("worker.hosted.wait_memory_back", comes_late)
    async with rig(worker='{"memory": "100MiB"}') as r:
        idle = (await until(r.beat, "it is known")).devices[0].free_bytes
        first = await r.ready("m-1")
        try:
            await r.want("m-1", S.STOPPED)
            await until(lambda: not alive(first.pid), "its processes are gone")
            await r.want("m-2")
            for _ in range(3):
                beat = await another_heartbeat(r)
                (one,) = [report for report in beat.replicas if report.replica == "m-1"]
                assert (one.state, one.needs) == (S.DRAINING, {"ram": 64 * MIB})
                assert beat.devices[0].free_bytes <= idle - 64 * MIB
        finally:
            back.set()
        assert (await r.reaches("m-1", S.STOPPED)).needs == {}
        await r.reaches("m-2", S.READY)


async def another_heartbeat(r: Rig) -> WorkerBeat:
    last = await r.beat()
    assert last is not None

    async def later() -> WorkerBeat | None:
        beat = await r.beat()
        return beat if beat is not None and beat.at_ms > last.at_ms else None

    beat: WorkerBeat = await until(later, "another heartbeat")
    return beat
