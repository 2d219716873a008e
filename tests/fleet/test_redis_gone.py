"""Redis dies and comes back: with its data, without it, full, read-only, or still loading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fleet import FleetClient, Leader, Queue, Reaped, Registry
from rewarm.errors import QueueFull, QueueUnavailable
from rewarm.messages import WorkerBeat
from tests.fleet.helpers import claim, enqueue, ids, ticket, tickets
from tests.fleet.lua_sources import checked_sources
from tests.redis_server import LocalRedis

pytestmark = pytest.mark.redis


@pytest_asyncio.fixture
async def client(own_redis: LocalRedis) -> AsyncIterator[FleetClient]:
    connected = await FleetClient.connect(own_redis.url, "gone")
    connected.scripts.use(checked_sources())
    yield connected
    await connected.close()


def beat(worker: str = "w") -> WorkerBeat:
    return WorkerBeat(worker=worker, boot="b", host="h", pid=1)


@pytest.mark.asyncio
async def test_a_killed_redis_returns_with_every_ticket_and_lease(own_redis: LocalRedis, client: FleetClient) -> None:
    queue = Queue(client)
    for id_ in ids(20):
        await enqueue(queue, id_)
    grants = (await claim(queue, 2)).grants
    own_redis.kill()
    with pytest.raises(QueueUnavailable):
        await queue.positions("m", ["t0002"])
    own_redis.start()
    assert (await queue.waiting(["m"]))["m"].count == 18
    assert await queue.redeem(grants[0].ticket, grants[0].grant)
    assert tickets(await claim(queue, 2)) == ["t0002", "t0003"]
    assert await queue.gateway_beat("gw-1", held=[("m", id_) for id_ in ids(20)]) == ["t0000"]


@pytest.mark.asyncio
async def test_an_empty_redis_is_filled_by_the_gateways(own_redis: LocalRedis, client: FleetClient) -> None:
    queue = Queue(client)
    held = [("m", id_) for id_ in ids(5)]
    for id_ in ids(5):
        await enqueue(queue, id_)
    own_redis.kill()
    own_redis.empty()
    own_redis.start()
    missing = await queue.gateway_beat("gw-1", held=held)  # the server knows no script either
    assert missing == ids(5)
    for id_ in missing:
        await enqueue(queue, id_)
    assert tickets(await claim(queue, 5)) == ids(5)


@pytest.mark.asyncio
async def test_terms_grow_across_a_redis_that_lost_everything(own_redis: LocalRedis, client: FleetClient) -> None:
    before = await Leader(client, "one").campaign()
    own_redis.kill()
    own_redis.empty()
    own_redis.start()
    after = await Leader(client, "two").campaign()
    assert before is not None and after is not None
    assert after > before


@pytest.mark.asyncio
async def test_workers_and_gateways_outlive_an_outage_longer_than_their_deadlines(
    own_redis: LocalRedis, client: FleetClient
) -> None:
    registry, queue = Registry(client), Queue(client)
    await registry.beat(beat(), ttl_ms=3000)
    await enqueue(queue, "t")
    own_redis.kill()
    own_redis.start()
    client.scripts.clock_offset_ms += 60_000  # it was away for a minute
    view = await registry.snapshot()
    assert (list(view.workers), view.gateways) == (["w"], 1)
    assert await queue.reap() == Reaped(0, 0)
    assert list((await registry.snapshot()).workers) == ["w"]


@pytest.mark.asyncio
async def test_a_full_redis_refuses_new_requests_and_lets_the_queue_empty_itself(
    own_redis: LocalRedis, client: FleetClient
) -> None:
    queue, registry = Queue(client), Registry(client)
    for id_ in ("a", "b", "c", "d"):
        await enqueue(queue, id_)
    grants = (await claim(queue, 2)).grants
    await client.call("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(QueueFull, match="out of memory"):
        await enqueue(queue, "e")
    assert await queue.positions("m", ["e"]) == {"e": None}
    with pytest.raises(QueueUnavailable):
        await client.call("SET", "x", "y")

    assert await queue.redeem(grants[0].ticket, grants[0].grant)
    assert await queue.decline(grants[1].ticket, grants[1].grant)
    assert await queue.cancel("d")
    await queue.abandon(ticket("c", again="digest"))
    assert await queue.gateway_beat("gw-1", held=[("m", "b")]) == []
    await registry.beat(beat(), ttl_ms=3000)
    assert await Leader(client, "one").campaign() is not None
    assert tickets(await claim(queue)) == ["b"]
    assert await queue.reap() == Reaped(0, 0)

    await client.call("CONFIG", "SET", "maxmemory", "0")
    await enqueue(queue, "e")


@pytest.mark.asyncio
async def test_a_redis_that_became_a_replica_is_unavailable(own_redis: LocalRedis, client: FleetClient) -> None:
    await client.call("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(QueueUnavailable, match="replica"):
            await enqueue(Queue(client), "a")
        with pytest.raises(QueueUnavailable):
            await Leader(client, "one").campaign()
    finally:
        await client.call("REPLICAOF", "NO", "ONE")
    await enqueue(Queue(client), "a")


@pytest.mark.asyncio
async def test_a_redis_that_misses_its_replicas_is_unavailable(own_redis: LocalRedis, client: FleetClient) -> None:
    await client.call("CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(QueueUnavailable):  # a plain write: in a script, Redis 6.2 does not look at its replicas
        await client.call("SET", "x", "y")
    await client.call("CONFIG", "SET", "min-replicas-to-write", "0")
    await enqueue(Queue(client), "a")


@pytest.mark.asyncio
async def test_a_server_that_forgot_the_scripts_is_sent_them(client: FleetClient) -> None:
    queue = Queue(client)
    await enqueue(queue, "a")
    grant = (await claim(queue)).grants[0].grant
    await client.call("SCRIPT", "FLUSH")
    assert await queue.decline("a", grant)  # the pipelined way
    await client.call("SCRIPT", "FLUSH")
    assert tickets(await claim(queue)) == ["a"]  # the single way


@pytest.mark.asyncio
async def test_concurrent_callers_all_learn_that_it_is_gone(own_redis: LocalRedis, client: FleetClient) -> None:
    own_redis.kill()
    outcomes = await asyncio.gather(*(enqueue(Queue(client), id_) for id_ in ids(200)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {QueueUnavailable}
    own_redis.start()
    await enqueue(Queue(client), "a")
