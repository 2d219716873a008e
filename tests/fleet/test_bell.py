"""One blocking reader per process that never goes deaf."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fleet import Bell, BellEvent, FleetClient, Hint, Lost, Queue, Reconnected, Tick
from rewarm.messages import Grant
from tests.faults.redis_proxy import redis_proxy
from tests.fleet.helpers import claim, enqueue, until
from tests.redis_server import LocalRedis

pytestmark = pytest.mark.redis


@asynccontextmanager
async def heard(client: FleetClient, gateway: str | None = None) -> AsyncIterator[list[BellEvent]]:
    """A growing list of what a listener hears, from when it surely listens."""
    bell = Bell(client, gateway=gateway)
    out: list[BellEvent] = []

    async def listen() -> None:
        async for event in bell.listen():
            out.append(event)  # noqa: PERF401 -- a comprehension shows nothing before its end

    async with asyncio.TaskGroup() as group:
        task = group.create_task(listen())
        while not out:
            await bell.ring("here?")
            await asyncio.sleep(0.01)
        out.clear()
        yield out
        task.cancel()


def hints(events: list[BellEvent], reason: str) -> list[BellEvent]:
    return [event for event in events if isinstance(event, Hint) and event.reason == reason]


@pytest.mark.asyncio
async def test_an_enqueue_rings(fleet_client: FleetClient) -> None:
    async with heard(fleet_client) as events:
        await enqueue(Queue(fleet_client), "t", model="some/model:7b")
        await until(lambda: hints(events, "enqueue") == [Hint("enqueue", "some/model:7b")])


@pytest.mark.asyncio
async def test_grants_come_with_the_hints_over_the_same_connection(fleet_client: FleetClient) -> None:
    queue = Queue(fleet_client)
    await enqueue(queue, "early")
    await claim(queue)  # before anybody listens: a gateway's stream is read from its start
    async with heard(fleet_client, "gw-1") as events:
        await enqueue(queue, "t")
        grant = (await claim(queue)).grants[0]
        await until(lambda: grant in events)
        assert [event.ticket for event in events if isinstance(event, Grant)] == ["t"]


@pytest.mark.asyncio
async def test_a_grant_from_before_the_first_read_is_delivered(fleet_client: FleetClient) -> None:
    queue = Queue(fleet_client)
    await enqueue(queue, "early")
    grant = (await claim(queue)).grants[0]
    async for event in Bell(fleet_client, gateway="gw-1").listen():
        if event == grant:
            break
        assert not isinstance(event, Tick), "the grant was not there"


@pytest.mark.asyncio
async def test_many_hints_at_once_are_few_events(fleet_client: FleetClient) -> None:
    bell = Bell(fleet_client)
    async with heard(fleet_client) as events:
        await fleet_client.pipeline(
            [("XADD", fleet_client.keys.bell, "*", "r", "enqueue", "m", f"m{i % 2}") for i in range(500)]
        )
        await bell.ring("last")
        await until(lambda: bool(hints(events, "last")))
        assert 2 <= len(hints(events, "enqueue")) < 100


@pytest.mark.asyncio
async def test_silence_is_a_tick(fleet_client: FleetClient) -> None:
    async with heard(fleet_client) as events:
        await until(lambda: Tick() in events, seconds=4)


@pytest.mark.asyncio
async def test_the_stream_of_hints_is_capped(fleet_client: FleetClient) -> None:
    bell = Bell(fleet_client)
    for _ in range(60):  # few enough at once for a busy machine to connect in time
        await asyncio.gather(*(bell.ring("enqueue", "m") for _ in range(50)))
    assert await fleet_client.call("XLEN", fleet_client.keys.bell) < 1300


@pytest.mark.asyncio
async def test_a_lost_redis_is_said_once_and_heard_again_when_it_is_back(own_redis: LocalRedis) -> None:
    client = await FleetClient.connect(own_redis.url, "bell")
    async with heard(client) as events:
        own_redis.kill()
        await until(lambda: Lost() in events)
        own_redis.start()
        await until(lambda: Reconnected(empty=False) in events)
        await enqueue(Queue(client), "t")
        await until(lambda: bool(hints(events, "enqueue")))
        assert events.count(Lost()) == 1
    await client.close()


@pytest.mark.asyncio
async def test_a_redis_that_came_back_empty_is_said_so_to_each_listener(own_redis: LocalRedis) -> None:
    client = await FleetClient.connect(own_redis.url, "bell")
    async with heard(client, "gw-1") as gateway, heard(client) as worker:
        own_redis.kill()
        await until(lambda: Lost() in gateway and Lost() in worker)
        own_redis.empty()
        own_redis.start()
        await until(lambda: Reconnected(empty=True) in gateway and Reconnected(empty=True) in worker)
        await enqueue(Queue(client), "t")
        grant = (await claim(Queue(client))).grants[0]
        await until(lambda: grant in gateway)
    await client.close()


@pytest.mark.asyncio
async def test_data_flushed_under_a_live_connection_is_noticed(own_redis: LocalRedis) -> None:
    client = await FleetClient.connect(own_redis.url, "bell")
    async with heard(client) as events:
        await client.call("FLUSHALL")
        await until(lambda: Reconnected(empty=True) in events)
        await Bell(client).ring("after")
        await until(lambda: bool(hints(events, "after")))
    await client.close()


@pytest.mark.asyncio
async def test_a_silent_connection_is_given_up(redis_url: str, fleet_client: FleetClient) -> None:
    async with redis_proxy(redis_url) as proxy:
        client = await FleetClient.connect(proxy.url, fleet_client.keys.fleet, check=False)
        async with heard(client) as events:
            proxy.silent = True
            await until(lambda: Lost() in events, seconds=8)
            proxy.silent = False
            await until(lambda: Reconnected(empty=False) in events, seconds=8)
            await Bell(fleet_client).ring("after")
            await until(lambda: bool(hints(events, "after")))
        await client.close()


@pytest.mark.asyncio
async def test_a_listener_stops_when_it_is_cancelled(fleet_client: FleetClient) -> None:
    """redis-py swallows a cancellation now and then before Python 3.12; see fleet/_connection.py."""
    bell = Bell(fleet_client)

    async def listen() -> None:
        async for _ in bell.listen():
            pass

    for _ in range(60):
        task = asyncio.create_task(listen())
        await asyncio.sleep(random.uniform(0, 0.005))
        await bell.ring("x")
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=2)
        assert done, "the listener went on after it was cancelled"
