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


@pytest.mark.parametrize("guard", ["on", "off"])
async def test_a_load_is_held_back_while_another_serves_and_only_with_the_guard(rig: RunRig, guard: str) -> None:
    worker = f'{{"load_guard": "{guard}"}}'
    async with rig("--token-delay", "0.02", "--start-delay", "1.5", worker=worker) as r:
        serves = await r.ready("serves-1")
        answer = await r.stream(serves.endpoint, fake={"tokens": 20000}, stream=True)
        reading = asyncio.create_task(answer.read(2**24))
        await until(lambda: r.agent._around.loads.samples.any_since(0.0), "its gate has told of its answers", 40)
        file = r.paths.run / "loads-1.throttle"
        await r.want("loads-1")
        await until(file.exists, "the load has begun", 40)
        if guard == "on":
            await until(lambda: limit(file) < math.inf, "it is held back", 40)
        else:
            assert limit(file) == math.inf
        await r.reaches("loads-1", ReplicaState.READY, 60)
        await until(lambda: not file.exists(), "it is ready, and loads no more", 40)
        reading.cancel()
        answer.abort()
