"""Between us and Redis lies a network: replies get lost, connections break, nothing comes at all."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fleet import FleetClient, Queue
from rewarm.errors import QueueUnavailable
from tests.faults.redis_proxy import RedisProxy, redis_proxy
from tests.fleet.helpers import claim, enqueue, events, tickets
from tests.fleet.lua_sources import checked_sources

pytestmark = pytest.mark.redis


@pytest_asyncio.fixture
async def proxy(redis_url: str) -> AsyncIterator[RedisProxy]:
    async with redis_proxy(redis_url) as running:
        yield running


@pytest_asyncio.fixture
async def through_proxy(proxy: RedisProxy, fleet_client: FleetClient) -> AsyncIterator[FleetClient]:
    """A second client of the same fleet, whose way to Redis is unreliable."""
    client = await FleetClient.connect(proxy.url, fleet_client.keys.fleet, check=False)
    client.scripts.use(checked_sources())
    yield client
    await client.close()


@pytest.mark.asyncio
async def test_an_enqueue_whose_reply_is_lost_makes_one_ticket(
    proxy: RedisProxy, through_proxy: FleetClient, fleet_client: FleetClient
) -> None:
    queue = Queue(through_proxy)
    await enqueue(queue, "first")
    proxy.lose_the_reply_to(b"second")
    placed = await enqueue(queue, "second")  # repeated by itself over a new connection
    assert proxy.replies_lost == 1
    assert placed.position == 1
    assert (await Queue(fleet_client).waiting(["m"]))["m"].count == 2


@pytest.mark.asyncio
async def test_an_enqueue_repeated_after_its_ticket_was_granted_changes_nothing(
    proxy: RedisProxy, through_proxy: FleetClient, fleet_client: FleetClient
) -> None:
    await enqueue(Queue(through_proxy), "a")
    grant = (await claim(Queue(fleet_client))).grants[0]
    await enqueue(Queue(through_proxy), "a")  # the caller never saw the first answer
    assert tickets(await claim(Queue(fleet_client))) == []
    assert await Queue(through_proxy).redeem("a", grant.grant)


@pytest.mark.asyncio
async def test_a_claim_whose_reply_is_lost_makes_one_grant(
    proxy: RedisProxy, through_proxy: FleetClient, fleet_client: FleetClient
) -> None:
    for id_ in ("a", "b", "c"):
        await enqueue(Queue(fleet_client), id_)
    proxy.lose_the_reply_to(b"grant-once-0")
    claimed = await claim(Queue(through_proxy), 1, request_id="once")
    assert proxy.replies_lost == 1
    assert tickets(claimed) == ["a"]
    assert await claim(Queue(through_proxy), 1, request_id="once") == claimed
    assert len(await events(fleet_client)) == 1
    assert (await Queue(fleet_client).waiting(["m"]))["m"].count == 2


@pytest.mark.asyncio
async def test_a_cancel_whose_reply_is_lost_is_not_an_error(
    proxy: RedisProxy, through_proxy: FleetClient, fleet_client: FleetClient
) -> None:
    await enqueue(Queue(fleet_client), "a")
    proxy.lose_the_reply_to(b"EVALSHA")
    await Queue(through_proxy).cancel("a")
    assert proxy.replies_lost == 1
    assert await Queue(fleet_client).positions("m", ["a"]) == {"a": None}


@pytest.mark.asyncio
async def test_broken_connections_of_the_pool_are_replaced(proxy: RedisProxy, through_proxy: FleetClient) -> None:
    queue = Queue(through_proxy)
    await enqueue(queue, "before")
    await proxy.cut()
    assert (await enqueue(queue, "after")).position == 1


@pytest.mark.asyncio
async def test_a_redis_that_refuses_connections_is_an_error_at_once(
    proxy: RedisProxy, through_proxy: FleetClient
) -> None:
    await proxy.stop()
    started = time.monotonic()
    with pytest.raises(QueueUnavailable, match="cannot be reached"):
        await enqueue(Queue(through_proxy), "a")
    assert time.monotonic() - started < 0.5
    await proxy.start()
    assert (await enqueue(Queue(through_proxy), "a")).position == 0


@pytest.mark.asyncio
async def test_a_silent_redis_is_an_error_within_three_seconds(proxy: RedisProxy, through_proxy: FleetClient) -> None:
    proxy.silent = True
    for connection in ("one that was open", "a new one, whose greeting is not answered"):
        started = time.monotonic()
        with pytest.raises(QueueUnavailable, match="does not answer"):
            await enqueue(Queue(through_proxy), "a")
        assert time.monotonic() - started < 3, connection
    proxy.silent = False
    # What the silent connections still carry must not be taken for the answer to anything else.
    assert (await enqueue(Queue(through_proxy), "b")).reattached is False
    assert await Queue(through_proxy).positions("m", ["nobody"]) == {"nobody": None}


@pytest.mark.asyncio
async def test_a_slow_redis_still_works(proxy: RedisProxy, through_proxy: FleetClient) -> None:
    proxy.delay_s = 0.05
    await enqueue(Queue(through_proxy), "a")
    assert tickets(await claim(Queue(through_proxy))) == ["a"]
