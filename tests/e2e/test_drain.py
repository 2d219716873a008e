"""Going to zero loses nobody: streams outlive idleness, SIGTERM of the worker and of the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.stack import Event, Process, Stack, chat, fake, post, stream, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(240)]


async def one_minute_stream(gateway: Process, lines: list[Event], seconds: float = 60.0) -> None:
    tokens = 120
    body = chat("m", fake={"tokens": tokens, "token_delay": seconds / tokens})
    async for event in stream(gateway.url, body):
        lines.append(event)  # noqa: PERF401 -- who waits looks at the lines while they come


def assert_whole(lines: list[Event]) -> None:
    assert lines[-1].line == "data: [DONE]"
    text = "".join(event.content for event in lines)
    assert "Paris" in text
    assert "word119" in text
    assert not any(event.data and "error" in event.data for event in lines)


@pytest.mark.asyncio
async def test_a_minute_s_stream_outlives_idleness_sigterm_of_the_worker_and_of_the_gateway(tmp_path: Path) -> None:
    """One stream through all three, in the order in which a rolling update meets them."""
    async with Stack(tmp_path, {"m": fake(idle_after="1s")}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        worker = await stack.start_worker()
        lines: list[Event] = []
        running = asyncio.create_task(one_minute_stream(gateway, lines))
        await until(lambda: any(event.content for event in lines), "the stream has begun")
        count = len(lines)
        # Ten idle periods pass in the stream: being in flight is not being idle.
        await until(lambda: len(lines) > count + 20, "ten seconds of the stream", 30)
        assert await stack.replica_states(gateway, "m") == ["ready"]
        worker_ends = asyncio.create_task(worker.terminate(within_s=120))

        async def draining() -> bool:
            return await stack.replica_states(gateway, "m") == ["draining"]

        await until(draining, "the worker drains")
        gateway_ends = asyncio.create_task(gateway.terminate(within_s=120))
        await running
        assert_whole(lines)
        assert await gateway_ends == 0
        assert await worker_ends == 0
        await until(lambda: not stack.engines(), "the engine is gone")


@pytest.mark.asyncio
async def test_an_idle_model_goes_to_zero_and_the_next_request_wakes_it(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"m": fake(idle_after="1s")}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        for text in ("first", "second"):
            status, body, headers = await post(gateway.url, chat("m", text))
            assert (status, text_of(body)) == (200, f"You said: {text}")
            assert headers["x-rewarm-start"] == "cold"
            for phase in ("queue", "starting", "warming", "verifying", "engine"):
                assert f"{phase};dur=" in headers["server-timing"], "the answer tells what the cold start was made of"
            await until(lambda: not stack.engines(), "the model went to zero")

        async def forgotten() -> bool:
            return not await stack.replica_states(gateway, "m")

        await until(forgotten, "the replica is gone from the registry")


@pytest.mark.asyncio
async def test_a_request_that_comes_during_the_drain_is_served(tmp_path: Path) -> None:
    """The drain is asked for while a stream runs; a second request must not fail, whatever becomes of the drain."""
    async with Stack(tmp_path, {"m": fake(max_replicas=1)}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        lines: list[Event] = []
        running = asyncio.create_task(one_minute_stream(gateway, lines, seconds=6))
        await until(lambda: any(event.content for event in lines), "the stream has begun")
        async with aiohttp.ClientSession() as http:
            command = {"kind": "sleep", "target": "m"}
            async with http.post(f"{gateway.url}/rewarm/v1/commands", json=command) as answer:
                assert answer.status < 300

        async def draining() -> bool:
            return "draining" in await stack.replica_states(gateway, "m")

        await until(draining, "the drain has begun")
        status, body, _ = await post(gateway.url, chat("m", "meanwhile"))
        assert (status, text_of(body)) == (200, "You said: meanwhile")
        await running
        assert_whole(lines)


@pytest.mark.asyncio
async def test_a_gateway_that_stops_tells_its_held_clients_to_try_again(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"m": fake("--start-delay", "5")}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway("gateway-1")
        other = await stack.start_gateway("gateway-2")
        await stack.start_worker()
        held = asyncio.create_task(post(gateway.url, chat("m")))
        await until(stack.engine_programs, "the load has begun")
        assert await gateway.terminate() == 0
        status, body, headers = await held
        assert (status, body["error"]["code"]) == (503, "shutting_down")
        assert headers["retry-after"]
        status, body, _ = await post(other.url, chat("m", "elsewhere"))
        assert (status, text_of(body)) == (200, "You said: elsewhere")


@pytest.mark.asyncio
async def test_a_client_that_leaves_frees_its_slot_and_the_load_goes_on(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"m": fake("--start-delay", "2", slots=1)}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        leaving = asyncio.create_task(post(gateway.url, chat("m")))
        await until(stack.engine_programs, "the load has begun")
        leaving.cancel()

        async def ready() -> bool:
            return await stack.replica_states(gateway, "m") == ["ready"]

        await until(ready, "the load went on without its client")
        stuck = asyncio.create_task(post(gateway.url, chat("m", fake={"stall_after": 1})))

        async def in_flight(count: int) -> bool:
            return bool((await stack.replicas(gateway, "m"))[0]["in_flight"] == count)

        await until(lambda: in_flight(1), "the only slot is taken")
        stuck.cancel()
        await until(lambda: in_flight(0), "the slot is free again")
        assert (await post(gateway.url, chat("m", "next")))[0] == 200
