"""Gateways, workers and engines are killed at the worst moments: slots are freed, everybody else is answered."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import redis.asyncio

from fleet import Keys
from tests.e2e.conftest import EngineLog
from tests.e2e.stack import Event, Stack, chat, fake, post, stream, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


async def granted_to(client: redis.asyncio.Redis, fleet: str, gateway: str) -> set[bytes | str]:
    """The gateway's tickets that have been granted a slot and have not redeemed it, read in Redis itself."""
    keys = Keys(fleet)
    held = await client.smembers(keys.held(gateway))
    return {ticket for ticket in held if await client.zscore(keys.lease, ticket) is not None}


@pytest.mark.asyncio
async def test_a_gateway_that_dies_while_it_holds_requests_costs_only_its_own(
    tmp_path: Path, engine_log: EngineLog
) -> None:
    """Stopped (SIGSTOP) before the grants come, and killed when both slots are granted to it and not yet redeemed."""
    model = fake("--start-delay", "2", "--token-delay", "0.01", "--log", str(engine_log.path), slots=2)
    async with Stack(tmp_path / "s", {"m": model}) as stack:
        await stack.start_redis()
        assert stack.redis_url
        client = redis.asyncio.Redis.from_url(stack.redis_url)
        doomed = await stack.start_gateway("gateway-doomed")
        doomed_id = (await stack.status(doomed))["gateway"]["id"]
        other = await stack.start_gateway("gateway-other")
        await stack.start_worker()
        lost = [asyncio.create_task(post(doomed.url, chat("m", user="lost"))) for _ in range(6)]

        async def waiting(count: int) -> bool:
            return bool((await stack.status(other))["models"]["m"]["waiting"] >= count)

        await until(lambda: waiting(6), "six wait at the doomed gateway")
        kept = [asyncio.create_task(post(other.url, chat("m", f"k{n}", user="kept"))) for n in range(6)]
        await until(lambda: waiting(12), "twelve wait in all")
        doomed.signal(signal.SIGSTOP)

        async def both_granted() -> bool:
            return len(await granted_to(client, stack.fleet, doomed_id)) == 2

        await until(both_granted, "both slots are granted to the stopped gateway")
        await doomed.kill()
        assert len(await granted_to(client, stack.fleet, doomed_id)) == 2, "it died with the grants in its hands"
        await client.aclose()
        assert engine_log.count("start") == 0
        answers = await asyncio.gather(*kept)
        assert [text_of(body) for _, body, _ in answers] == [f"You said: k{n}" for n in range(6)]
        results = await asyncio.gather(*lost, return_exceptions=True)
        assert all(isinstance(result, aiohttp.ClientError) for result in results)

        async def slots_free() -> bool:
            replica = (await stack.replicas(other, "m"))[0]
            return bool(replica["in_flight"] == 0 and replica["reserved"] == 0)

        await until(slots_free, "no slot is leaked")
        status, body, _ = await post(other.url, chat("m", "next"))
        assert (status, text_of(body)) == (200, "You said: next")
        assert engine_log.count("end") >= 6


@pytest.mark.asyncio
async def test_a_worker_that_is_killed_with_requests_held_is_replaced_and_they_are_answered(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"m": fake("--start-delay", "3", "--fork-child")}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        worker = await stack.start_worker()
        held = [asyncio.create_task(post(gateway.url, chat("m", f"n{n}"))) for n in range(8)]

        await until(stack.engine_programs, "the engine is loading")
        await worker.kill()
        again = await stack.start_worker("worker-1", wait=False)
        answers = await asyncio.gather(*held)
        assert [text_of(body) for _, body, _ in answers] == [f"You said: n{n}" for n in range(8)]
        status, body, _ = await post(gateway.url, chat("m", "next"))
        assert (status, text_of(body)) == (200, "You said: next")
        # The fake engine and its child that left the session: two programs, of the second load only.
        await until(lambda: len(stack.engine_programs()) == 2, "the first load's programs are swept")
        assert again.text().count("event=start ") == 2, "one load before the kill, one after it"
        assert await again.terminate() == 0
        await until(lambda: not stack.engines(), "nothing is left, whatever left the session")


@pytest.mark.asyncio
async def test_an_engine_that_dies_in_a_stream_ends_it_with_a_typed_error_and_the_next_request_wakes_another(
    tmp_path: Path,
) -> None:
    async with Stack(tmp_path, {"m": fake("--token-delay", "0.05")}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        lines: list[Event] = []
        killed = 0.0
        async for event in stream(gateway.url, chat("m", fake={"tokens": 100})):
            lines.append(event)
            if "word20" in event.content:
                (engine,) = stack.engine_programs()
                killed = time.monotonic()
                engine.kill()
        assert killed
        assert lines[-1].line == "data: [DONE]"
        error = lines[-2].data
        assert next(iter(error)) == "error"
        assert error["error"]["code"] == "worker_died"
        assert "choices" not in error
        assert lines[-2].at - killed < 1.0
        status, body, _ = await post(gateway.url, chat("m", "next"))
        assert (status, text_of(body)) == (200, "You said: next")


@pytest.mark.parametrize(
    ("knobs", "fields", "reason"),
    [
        (("--exit-at-start", "3"), {}, "engine_exited"),
        (("--hang-at-start",), {"starting_stall": "2s"}, "stalled"),
        (("--open-but-never-ready",), {"initialising_stall": "2s"}, "stalled"),
    ],
)
@pytest.mark.asyncio
async def test_an_engine_that_never_becomes_ready_is_a_typed_error_and_leaves_nothing(
    tmp_path: Path, knobs: tuple[str, ...], fields: dict[str, Any], reason: str
) -> None:
    model = fake(*knobs, load_attempts=2, retry_backoff="200ms", **fields)
    async with Stack(tmp_path, {"broken": model, "good": fake()}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        status, body, headers = await post(gateway.url, chat("broken"))
        told_ms = time.time() * 1000
        assert (status, body["error"]["code"]) == (500, "model_load_failed"), body
        assert told_ms - body["failure"]["at_ms"] < 1000, "the client is told as soon as it is known"
        assert reason in str(body)
        assert headers["x-should-retry"] == "false"
        begin = time.monotonic()
        status, body, _ = await post(gateway.url, chat("broken"))
        assert (status, body["error"]["code"]) == (500, "model_load_failed")
        assert time.monotonic() - begin < 1.0, "a failure is remembered, so that retries are cheap"
        await until(lambda: not stack.engines(), "nothing of the failed engine is left")
        assert (await post(gateway.url, chat("good", "hello")))[0] == 200


@pytest.mark.asyncio
async def test_an_engine_that_is_stopped_while_it_loads_is_found_stalled_and_leaves_nothing(tmp_path: Path) -> None:
    """Host and engine are stopped (SIGSTOP): none of them can report anything, and only SIGKILL reaches them."""
    stall_s = 2.0
    model = fake("--start-delay", "60", load_attempts=1, starting_stall=f"{stall_s:g}s")
    async with Stack(tmp_path, {"m": model}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        waiting = asyncio.create_task(post(gateway.url, chat("m")))
        await until(stack.engine_programs, "the engine is loading")
        stopped_at = time.monotonic()
        stopped = stack.engines()
        assert len(stopped) >= 2, "the host and the engine"
        for process in stopped:
            process.suspend()
        status, body, _ = await waiting
        took_s = time.monotonic() - stopped_at
        assert (status, body["error"]["code"], body["reason"]) == (500, "model_load_failed", "stalled"), body
        assert took_s < stall_s + 1.5, took_s
        await until(lambda: not stack.engines(), "what was stopped is gone", 5)


@pytest.mark.asyncio
async def test_a_stream_to_a_model_that_cannot_load_ends_with_an_error_event(tmp_path: Path) -> None:
    model = fake("--start-delay", "2.5", "--exit-at-start", "3", load_attempts=1)
    async with Stack(tmp_path, {"broken": model}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        lines = [event async for event in stream(gateway.url, chat("broken"))]
        assert lines[-1].line == "data: [DONE]"
        assert lines[-2].data["error"]["code"] == "model_load_failed"
        assert lines[0].line.startswith(": ")


@pytest.mark.asyncio
async def test_an_engine_that_is_stopped_in_a_stream_is_a_typed_error_not_a_hang(tmp_path: Path) -> None:
    """And it does not stay: its host finds it silent, it is killed, the next request wakes another."""
    stall_s = 2.0
    async with Stack(tmp_path, {"m": fake("--token-delay", "0.05", answer_stall=f"{stall_s:g}s")}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        lines: list[Event] = []
        stopped: psutil.Process | None = None
        stopped_at = 0.0
        async for event in stream(gateway.url, chat("m", fake={"tokens": 100})):
            lines.append(event)
            if "word20" in event.content:
                (stopped,) = stack.engine_programs()
                stopped_at = time.monotonic()
                stopped.suspend()
        assert stopped is not None
        assert lines[-1].line == "data: [DONE]"
        assert lines[-2].data["error"]["code"] == "engine_stalled"
        assert lines[-2].at - stopped_at < stall_s + 1.0
        await until(lambda: stopped not in stack.engines(), "the stopped engine is gone", 15)
        status, body, _ = await post(gateway.url, chat("m", "next"))
        assert (status, text_of(body)) == (200, "You said: next")
        assert stopped not in stack.engine_programs()
