"""What the gateway says of workers' pools: each model's state in ``/metrics``, and in the status also why."""

from __future__ import annotations

import pytest

from rewarm.messages import PoolReport, PreparedReport, WorkerBeat
from tests.gateway.world import BEAT_TTL_MS, World

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

WHY = "/models/odd/config.json at byte 1: not JSON"
POOL = PoolReport(
    kind="vllm",
    state="ready",
    prepared=(
        PreparedReport(model="small", state="ready", ready=1),
        PreparedReport(model="odd", state="refused", reason=WHY),
    ),
)


async def test_a_model_that_cannot_be_prepared_is_counted_and_its_reason_told(world: World) -> None:
    beat = WorkerBeat(worker="one", boot="one", host="h", pid=1, pools=(POOL,))
    await world.registry.beat(beat, ttl_ms=BEAT_TTL_MS, ring=True)
    await world.gateways[0].view.refresh()
    lines = (await world.get("/metrics")).body.decode().splitlines()
    assert 'rewarm_pool_ready{kind="vllm",model="small",state="ready",worker="one"} 1.0' in lines
    assert 'rewarm_pool_ready{kind="vllm",model="odd",state="refused",worker="one"} 0.0' in lines
    status = (await world.get("/rewarm/v1/status")).json
    (told,) = (worker for worker in status["workers"] if worker["worker"] == "one")
    reasons = {entry["model"]: entry.get("reason", "") for entry in told["pools"][0]["prepared"]}
    assert reasons == {"small": "", "odd": WHY}, "as `rewarm ps --json` shows it"
