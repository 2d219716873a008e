"""Two gateways on one Redis hold requests for one cold model: one load, never more than its slots, each tenant
served."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.e2e.conftest import EngineLog
from tests.e2e.stack import Stack, chat, fake, post, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]

SLOTS = 4


def key(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """(entry of the configuration, header of a request) of one API key."""
    secret = f"secret-of-{name}"
    entry = {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest()}
    return entry, {"Authorization": f"Bearer {secret}"}


async def waiting_tickets(url: str, fleet: str) -> int:
    """Tickets in the ready sets of all models and bands, counted in Redis itself."""
    client = redis.asyncio.Redis.from_url(url)
    try:
        total = 0
        async for name in client.scan_iter(f"{{rw:{fleet}}}*:ready:*"):
            total += await client.zcard(name)
        return total
    finally:
        await client.aclose()


@pytest.mark.asyncio
async def test_two_hundred_requests_on_a_cold_model_are_one_load_and_two_hundred_answers(
    tmp_path: Path, redis_url: str, engine_log: EngineLog
) -> None:
    model = fake("--start-delay", "2", "--token-delay", "0.002", "--log", str(engine_log.path), slots=SLOTS)
    async with Stack(tmp_path / "s", {"m": model}, redis_url=redis_url, fleet=tmp_path.name[-30:]) as stack:
        gateways = [await stack.start_gateway(f"gateway-{n}") for n in (1, 2)]
        worker = await stack.start_worker()
        requests = [
            asyncio.create_task(post(gateways[n % 2].url, chat("m", f"France {n}", user=f"u{n}"))) for n in range(200)
        ]

        async def all_wait() -> bool:
            return await waiting_tickets(redis_url, stack.fleet) >= 200

        await until(all_wait, "all 200 wait as tickets in Redis")
        answers = await asyncio.gather(*requests)
        for n, (status, body, _) in enumerate(answers):
            assert status == 200, body
            assert text_of(body).endswith(f"You said: France {n}")
        assert engine_log.peak() == SLOTS, "all slots are used, and never more"
        assert engine_log.count("end") == 200
        assert worker.text().count("event=start ") == 1, "one load for all of them"
        assert len(stack.engine_programs()) == 1
        assert len(await stack.replicas(gateways[0], "m")) == 1
        assert await waiting_tickets(redis_url, stack.fleet) == 0


@pytest.mark.asyncio
async def test_a_tenant_with_a_long_queue_does_not_delay_a_small_one(
    tmp_path: Path, redis_url: str, engine_log: EngineLog
) -> None:
    model = fake("--start-delay", "3", "--token-delay", "0.005", "--log", str(engine_log.path), slots=SLOTS)
    (a, as_a), (b, as_b) = key("a"), key("b")
    fleet = tmp_path.name[-30:]
    async with Stack(tmp_path / "s", {"m": model}, keys=[a, b], redis_url=redis_url, fleet=fleet) as stack:
        gateways = [await stack.start_gateway(f"gateway-{n}") for n in (1, 2)]
        await stack.start_worker()
        big = [asyncio.create_task(post(gateways[n % 2].url, chat("m", user="a"), as_a)) for n in range(150)]

        async def waiting(count: int) -> bool:
            return await waiting_tickets(redis_url, stack.fleet) >= count

        await until(lambda: waiting(150), "the 150 of tenant a wait")
        small = [asyncio.create_task(post(gateways[n % 2].url, chat("m", user="b"), as_b)) for n in range(50)]
        answers = await asyncio.gather(*big, *small)
        assert {status for status, _, _ in answers} == {200}
        places = [place for place, tenant in enumerate(engine_log.order(), 1) if tenant == "b"]
        assert len(places) == 50
        late = [(k, place) for k, place in enumerate(places, 1) if place > 2 * k + SLOTS]
        assert late == []
