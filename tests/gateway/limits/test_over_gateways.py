"""The limits of a key at real gateways: what a client sees, and that two gateways share one limit."""

from __future__ import annotations

import hashlib

import pytest

from tests.gateway.conftest import MakeWorld
from tests.gateway.world import CONFIG, World, chat, config

KEYS = f"""
keys:
  - {{name: few, sha256: {hashlib.sha256(b"few").hexdigest()}, requests_per_minute: 4, tokens_per_minute: 1000}}
  - {{name: short, sha256: {hashlib.sha256(b"short").hexdigest()}, max_output_tokens: 10}}
"""


def as_(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def with_keys(make_world: MakeWorld, gateways: int) -> World:
    world: World = await make_world(config(CONFIG + KEYS))
    for _ in range(gateways):
        await world.gateway()
    await world.ready("m")
    for gateway in world.gateways:
        await gateway.view.refresh()
        await gateway.sharing.share()
    return world


@pytest.mark.asyncio
async def test_a_client_sees_what_is_left_and_when_to_come_back(make_world: MakeWorld) -> None:
    world = await with_keys(make_world, 1)
    left = []
    for _ in range(4):
        answer = await world.post(chat(), as_("few"))
        assert answer.status == 200
        left.append(answer.headers["x-ratelimit-remaining-requests"])
    assert left == ["3", "2", "1", "0"]
    refused = await world.post(chat(), as_("few"))
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert refused.headers["x-ratelimit-limit-tokens"] == "1000"
    assert (await world.post(chat(), as_("short"))).status == 200, "another key is not concerned"
    counted = (await world.get("/metrics")).body.decode().splitlines()
    assert 'rewarm_errors_total{code="rate_limit_exceeded",model=""} 1.0' in counted


@pytest.mark.asyncio
async def test_two_gateways_share_one_limit(make_world: MakeWorld) -> None:
    world = await with_keys(make_world, 2)
    for _ in range(2):
        assert (await world.post(chat(), as_("few"))).status == 200
    first, second = world.gateways
    await first.sharing.share()
    await second.sharing.share()
    limits = second.keys.limits_of("few")
    assert limits is not None
    assert limits.requests is not None
    assert limits.requests.left(second.view.now_ms() // 1000) == 2


@pytest.mark.asyncio
async def test_a_job_counts_when_it_is_handed_in(make_world: MakeWorld) -> None:
    world = await with_keys(make_world, 1)
    for _ in range(4):
        assert (await world.post(chat(), as_("few"), "/v1/jobs")).status == 202
    assert (await world.post(chat(), as_("few"), "/v1/jobs")).code == "rate_limit_exceeded"


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/jobs"])
async def test_more_than_a_key_may_ever_ask_for_is_a_bad_request(make_world: MakeWorld, path: str) -> None:
    world = await with_keys(make_world, 1)
    answer = await world.post(chat(max_tokens=11), as_("short"), path)
    assert (answer.status, answer.code) == (400, "key_limit_exceeded")
    assert answer.json["error"]["param"] == "max_tokens"
