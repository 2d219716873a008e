"""Redis goes away and comes back under a gateway that serves: the hot path does not notice, the rest says so at
once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from rewarm.config import catalogue
from tests.gateway.world import World, chat, chunk, config, hello, sse, until
from tests.redis_server import LocalRedis

pytestmark = pytest.mark.redis


@pytest.mark.asyncio
async def test_hot_requests_are_served_and_cold_ones_fail_at_once(own_redis: LocalRedis) -> None:
    async with World(own_redis.url, "gone", config()) as world:
        gateway = await world.gateway()
        gate = await world.ready("m")
        await world.known("m")
        go_on = asyncio.Event()

        async def long(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(sse(chunk(role="assistant", content="a")))
            await go_on.wait()
            await response.write(sse(chunk(content="b"), "[DONE]"))
            await response.write_eof()
            return response

        gate.answer = long
        async with asyncio.TaskGroup() as group:
            stream = group.create_task(world.post(chat(stream=True)))
            await until(lambda: gate.running == 1, "a stream runs")
            held = group.create_task(world.post(chat("other")))
            await until(lambda: _waits(world), "one is held")
            own_redis.kill()
            await until(lambda: not gateway.view.available, "the gateway knows")
            gate.answer = hello
            assert (await world.post(chat())).text == "Hello there"
            begin = time.monotonic()
            refused = await world.post(chat("other", user="late"))
            assert (refused.status, refused.code, refused.headers["Retry-After"]) == (503, "queue_unavailable", "5")
            assert time.monotonic() - begin < 0.5
            assert (await world.get("/ready")).json == {"status": "ready", "redis": "unreachable"}
            go_on.set()
            assert b"[DONE]" in (await stream).body
            own_redis.start()
            await until(lambda: gateway.view.available, "it is back")
            await world.ready("other")
        assert held.result().status == 200
        assert (await world.post(chat("other", user="late"))).status == 200
        receipt = await world.get("/v1/requests/" + refused.headers["X-Request-Id"])
        assert receipt.json["error"] == "queue_unavailable", "receipts wait for Redis too"


@pytest.mark.asyncio
async def test_an_empty_redis_loses_no_held_request(own_redis: LocalRedis) -> None:
    async with World(own_redis.url, "empty", config()) as world:
        await world.gateway()
        await world.ready("m")
        await world.known("m")
        async with asyncio.TaskGroup() as group:
            held = group.create_task(world.post(chat("other")))
            await until(lambda: _waits(world), "one is held")
            await world.client.redis.flushall()
            assert (await world.post(chat())).status == 200, "ready models are known still"
            await world.leader.campaign()
            await world.publisher.catalogue(catalogue(world.config))
            await world.ready("other")
        assert held.result().status == 200


async def _waits(world: World) -> bool:
    return (await world.queue.waiting(["other"]))["other"].count == 1
