"""What ``/metrics`` says of the memory of workers' devices."""

from __future__ import annotations

import pytest

from rewarm.messages import DeviceReport, WorkerBeat
from tests.gateway.world import BEAT_TTL_MS, World

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

RAM = DeviceReport(
    id="ram",
    kind="ram",
    total_bytes=100,
    budget_bytes=80,
    promised_bytes=40,
    used_bytes=30,
    others_bytes=10,
    free_bytes=25,
)
LOST = DeviceReport(id="GPU-1", kind="gpu", index=0, total_bytes=24, state="lost", reason="fell off the bus")


async def test_every_device_of_every_worker_with_its_sizes_and_whether_it_answers(world: World) -> None:
    for name, devices in (("one", (RAM, LOST)), ("two", (RAM,))):
        beat = WorkerBeat(worker=name, boot=name, host="h", pid=1, devices=devices)
        await world.registry.beat(beat, ttl_ms=BEAT_TTL_MS, ring=True)
    await world.gateways[0].view.refresh()
    lines = (await world.get("/metrics")).body.decode().splitlines()
    for what, size in {"total": 100, "budget": 80, "promised": 40, "used": 30, "others": 10, "free": 25}.items():
        for worker in ("one", "two"):
            assert f'rewarm_device_bytes{{device="ram",kind="ram",what="{what}",worker="{worker}"}} {size}.0' in lines
    assert 'rewarm_device_up{device="ram",kind="ram",worker="two"} 1.0' in lines
    assert 'rewarm_device_up{device="GPU-1",kind="gpu",worker="one"} 0.0' in lines
    assert 'rewarm_device_bytes{device="GPU-1",kind="gpu",what="free",worker="one"} 0.0' in lines
