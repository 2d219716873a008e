"""A load beside a model that serves: held back from its first moment, and like any other once it is ready."""

from __future__ import annotations

import asyncio
import math
import struct
from pathlib import Path

import pytest

from rewarm.states import ReplicaState
from tests.worker.conftest import RunRig, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90), pytest.mark.asyncio]


def limit(path: Path) -> float:
    try:
        return float(struct.unpack("=d", path.read_bytes())[0])
    except (OSError, struct.error):
        return math.inf


@pytest.mark.parametrize(("guard", "waited_for"), [("on", False), ("on", True), ("off", False)])
async def test_a_load_is_held_back_while_another_serves_unless_somebody_waits_for_it(
    rig: RunRig, guard: str, waited_for: bool
) -> None:
    worker = f'{{"load_guard": "{guard}"}}'
    async with rig("--token-delay", "0.02", "--start-delay", "3", worker=worker) as r:
        serves = await r.ready("serves-1")
        answer = await r.stream(serves.endpoint, fake={"tokens": 20000}, stream=True)
        reading = asyncio.create_task(answer.read(2**24))
        await until(lambda: r.agent._around.loads.samples.any_since(0.0), "its gate has told of its answers", 40)
        file = r.paths.run / "loads-1.throttle"
        await r.want("loads-1", waited_for=waited_for)
        await until(file.exists, "the load has begun", 40)
        if guard == "on" and not waited_for:
            await until(lambda: limit(file) < math.inf, "it is held back", 40)
            await r.want("loads-1", waited_for=True)
            await until(lambda: limit(file) == math.inf, "somebody has come to wait for it", 40)
            assert file.exists(), "it still loads"
        else:

            async def ready() -> bool:
                assert limit(file) == math.inf, "at no moment of it"
                report = await r.report("loads-1")
                return report is not None and report.state is ReplicaState.READY

            await until(ready, "it is ready", 60)
        await r.reaches("loads-1", ReplicaState.READY, 60)
        await until(lambda: not file.exists(), "it is ready, and loads no more", 40)
        reading.cancel()
        answer.abort()
