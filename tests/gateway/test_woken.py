"""A request that goes straight to a replica that sleeps: what its wake was made of, however late its worker tells."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fleet import Wakes
from gateway import woken
from rewarm.config import TracingConfig
from rewarm.messages import PhaseTiming
from rewarm.states import ReplicaState, Tier
from rewarm.tracing import Tracing
from rewarm.wakes import wake_of
from tests.gateway.upstream_api import KEY, THEIRS, UpstreamApi
from tests.gateway.world import CONFIG, HELLO, Gate, World, chat, config, sse, until

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

LOADED_AT_MS, WOKEN_AT_MS = 5000, 6000
LOAD: dict[str, Any] = {
    "ready_at_ms": LOADED_AT_MS,
    "tier": Tier.POOLED,
    "weights": "packed m@1",
    "timings": (PhaseTiming(phase=ReplicaState.STARTING, started_s=0.0, duration_s=3.0),),
}
WAKE: dict[str, Any] = {
    "state": ReplicaState.READY,
    "ready_at_ms": WOKEN_AT_MS,
    "tier": Tier.ASLEEP,
    "timings": (PhaseTiming(phase=ReplicaState.RESTORING, started_s=0.0, duration_s=0.02),),
}

FAR = f"""
  far:
    engine: remote
    key_env: UPSTREAM_KEY
    upstream_model: {THEIRS}
    url: """


async def asleep(world: World) -> Gate:
    """``m`` was loaded, and sleeps now; its gate lets requests in, and its worker says nothing new."""
    gate = await world.ready("m", **LOAD)
    await told(world, state=ReplicaState.ASLEEP)
    await world.known("m", "asleep")
    return gate


async def told(world: World, **fields: Any) -> None:
    """The worker's word."""
    world.reports["m"] = msgspec.structs.replace(world.reports["m"], **fields)
    await world.beat()


async def receipt(world: World, headers: Any) -> dict[str, Any]:
    answer: dict[str, Any] = (await world.get(f"/v1/requests/{headers['X-Request-Id']}")).json
    return answer


async def test_an_answer_that_comes_first_is_not_told_the_load_before(world: World) -> None:
    await asleep(world)
    answer = await world.post(chat())
    assert answer.headers["X-Rewarm-Start"] == "cold"
    assert "wake;" not in answer.headers["Server-Timing"]
    said = await receipt(world, answer.headers)
    assert (said["state"], said["tier"], said["wake"], said["timings"]) == ("completed", "asleep", None, [])


async def test_its_receipt_has_the_wake_as_soon_as_the_worker_has_told_of_it(world: World) -> None:
    await asleep(world)
    answer = await world.post(chat())
    await told(world, **WAKE)

    async def filled_in() -> Any:
        return (await receipt(world, answer.headers))["wake"]

    wake = await until(filled_in, "the receipt has its wake")
    assert (wake["ready_at_ms"], wake["tier"], wake["duration_s"]) == (WOKEN_AT_MS, "asleep", 0.02)
    said = await receipt(world, answer.headers)
    assert [timing["phase"] for timing in said["timings"]] == ["restoring"]

    made = wake_of(world.worker, world.reports["m"])
    assert made is not None
    await Wakes(world.client).record(made)

    async def waited() -> Any:
        return (await world.get("/rewarm/v1/wakes")).json["data"][0]["waited"]

    assert await until(waited, "the wake's own receipt counts it") == 1


async def test_a_stream_tells_in_its_header_what_was_told_before_its_first_event(world: World) -> None:
    gate = await asleep(world)
    speak = asyncio.Event()

    async def head_first(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await speak.wait()
        await response.write(b"".join(sse(event) for event in HELLO))
        return response

    gate.answer = head_first
    async with asyncio.TaskGroup() as group:
        client = group.create_task(lines(world))
        await until(lambda: len(world.gateways[0].woken), "the head has come, the worker's word has not")
        await told(world, **WAKE)
        await world.known("m", "ready")
        speak.set()
    assert client.result()[-2:] == ["data: [DONE]\n", "\n"]
    assert 'wake;dur=20;desc="asleep, packed m@1", restoring;dur=20, engine;' in world.last_headers["Server-Timing"]


async def lines(world: World) -> list[str]:
    return [line async for line in world.lines(chat())]


async def test_its_span_has_the_wake_where_it_was_waited_for(make_world: Any) -> None:
    exporter = InMemorySpanExporter()
    world, tracing = await traced(make_world, exporter)
    await world.post(chat())
    await told(world, **WAKE)
    await until(lambda: not world.gateways[0].woken, "the worker's word has come")
    spans = await sent(tracing, exporter)
    assert set(spans) == {"POST /v1/chat/completions", "engine", "wake m", "restoring"}
    assert parent_of(spans["wake m"]) == id_of(spans["engine"])


@pytest.mark.parametrize(("within_s", "gateway_ends"), [(0.05, False), (60.0, True)])
async def test_a_wake_that_nobody_tells_of_is_given_up(
    make_world: Any, monkeypatch: pytest.MonkeyPatch, within_s: float, *, gateway_ends: bool
) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(woken, "TOLD_WITHIN_S", within_s)
    world, tracing = await traced(make_world, exporter)
    await world.post(chat())
    if gateway_ends:
        await world.gateways[0].__aexit__(None, None, None)
    await until(lambda: not world.gateways[0].woken, "it is given up")
    assert set(await sent(tracing, exporter)) == {"POST /v1/chat/completions", "engine"}


async def test_a_fallback_s_answer_is_not_told_the_wake_of_an_engine_that_died(make_world: Any) -> None:
    async def dies(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with UpstreamApi() as api:
        world: World = await make_world(config(CONFIG.replace("aliases: [alias]", "fallback: [far]") + FAR + api.url))
        await world.gateway(environ={"UPSTREAM_KEY": KEY})
        (await asleep(world)).answer = dies
        assert '" afar"' in "".join(await lines(world))
        assert world.last_headers["X-Rewarm-Model"] == "far"
        await told(world, **WAKE)
        await world.known("m", "ready")
        said = await receipt(world, world.last_headers)
        assert (said["replica"], said["tier"], said["start"], said["wake"]) == (None, "remote", "warm", None)


# --- spans -----------------------------------------------------------------------------------------------------------


async def traced(make_world: Any, exporter: InMemorySpanExporter) -> tuple[World, Tracing]:
    """With ``m`` asleep."""
    tracing = Tracing(TracingConfig(endpoint="http://x"), role="gateway", instance="i", exporter=exporter)
    world: World = await make_world()
    await world.gateway(tracing=tracing)
    await asleep(world)
    return world, tracing


async def sent(tracing: Tracing, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    await asyncio.to_thread(tracing.close)
    return {span.name: span for span in exporter.get_finished_spans()}


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else int(span.parent.span_id)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)
