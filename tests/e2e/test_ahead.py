"""``min_asleep`` on a real engine: nobody asks, and all the same the first request only has to wake it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.pools import packed
from tests.e2e.real import NO_POOL, vllm
from tests.e2e.stack import Stack, chat, post
from tests.e2e.test_jobs_progress import get
from tests.e2e.test_sleep import in_state

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.timeout(240), pytest.mark.asyncio]


async def test_it_sleeps_before_anybody_has_asked(tmp_path: Path, smollm2: Path) -> None:
    model = vllm(
        smollm2, context_length=512, slots=2, min_asleep=1, snapshot="weights", sleep_after="50m", idle_after="1h"
    )
    async with Stack(tmp_path, {"small": model}, pool=NO_POOL) as stack:
        serve = await stack.start_serve()

        # The first load is from the checkpoint, and cannot sleep: it makes the snapshot that the next one sleeps from.
        first = await in_state(stack, serve, "ready")
        assert first["cause"] == "min_asleep is 1"
        assert "packed snapshot" in first["no_sleep"]
        await packed(tmp_path, serve, "small")
        await serve.terminate()

        # After a restart it loads from there, and falls asleep as soon as it is ready.
        serve = await stack.start_serve()
        asleep = await in_state(stack, serve, "asleep")
        assert asleep["weights"].split()[0] == "packed"
        status, _, headers = await post(serve.url, chat("small", temperature=0, max_tokens=4))
        assert status == 200
        receipt = (await get(serve.url, f"/v1/requests/{headers['x-request-id']}"))[1]
        assert receipt["tier"] == "asleep"
        assert [timing["phase"] for timing in receipt["timings"]] == ["restoring"]
        assert (await in_state(stack, serve, "ready"))["replica"] == asleep["replica"]
