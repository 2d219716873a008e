"""Another model answers where the one that was asked for cannot, or not in time; and whoever asks can see it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from rewarm.states import ReplicaState
from tests.gateway.upstream_api import KEY, THEIRS, UpstreamApi, failing
from tests.gateway.world import HELLO, Gate, Reply, World, chat, config, hello, sse, streamed, until

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

MODELS = """
gateway:
  listen: 127.0.0.1:0
  holding: {stream_status_after: 300ms, comment_every: 1s, plain_status_after: 600ms, pad_every: 300ms}
models:
  big: {engine: command, cmd: "x ${PORT}", aliases: [best], fallback: [small, tiny], fallback_after: 20s}
  small: {engine: command, cmd: "x ${PORT}", aliases: [little], capabilities: [chat, completions], max_waiting: 1}
  tiny: {engine: command, cmd: "x ${PORT}"}
"""


@pytest_asyncio.fixture
async def fleet(make_world: Callable[..., Any]) -> World:
    return await started(make_world)


async def started(make_world: Callable[..., Any], text: str = MODELS) -> World:
    world: World = await make_world(config(text))
    await world.gateway(environ={"UPSTREAM_KEY": KEY})
    await world.known("big", "cold")
    return world


async def ready(world: World, model: str) -> Gate:
    gate = await world.ready(model)
    await world.known(model)
    return gate


async def remembered_as_failed(world: World, model: str = "big") -> None:
    await world.failed(model)
    await until(lambda: all(g.view.failure(model) for g in world.gateways), f"{model} is known to fail")


def events(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]


def content(told: list[dict[str, Any]]) -> str:
    return "".join(e["choices"][0]["delta"].get("content", "") for e in told if e.get("choices"))


async def named_model(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """As engines do: the answer's model is the one that the body asks for."""
    if body.get("stream"):
        pieces = [{**event, "model": body["model"]} if isinstance(event, dict) else event for event in HELLO]
        return await streamed(request, *(sse(piece) for piece in pieces))
    message = {"role": "assistant", "content": "Hello there"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return web.json_response({"id": "e", "object": "chat.completion", "model": body["model"], "choices": choices})


# --- who answers, and how it shows -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_the_fallback_of_a_model_that_failed_answers_at_once(fleet: World, stream: bool) -> None:
    gate = await ready(fleet, "small")
    gate.answer = named_model
    await remembered_as_failed(fleet)
    answer = await fleet.post(chat("best", stream=stream))
    assert answer.status == 200
    assert answer.headers["X-Rewarm-Model"] == "small"
    assert answer.headers["X-Rewarm-Fallback"] == "big; reason=model_load_failed"
    if stream:
        assert answer.body.startswith(b": fallback from=big to=small reason=model_load_failed\ndata: ")
        assert content(events(answer.body)) == "Hello there"
        assert {event["model"] for event in events(answer.body)} == {"small"}
    else:
        assert (answer.json["model"], answer.text) == ("small", "Hello there")
    receipt = (await fleet.get(f"/v1/requests/{answer.headers['X-Request-Id']}")).json
    assert (receipt["model"], receipt["served_model"]) == ("best", "small")
    assert receipt["fallback"] == "model_load_failed"
    metrics = (await fleet.get("/metrics")).body.decode()
    assert 'rewarm_fallbacks_total{from="big",reason="model_load_failed",to="small"} 1.0' in metrics


async def test_a_stream_that_has_begun_says_it_in_an_event(fleet: World) -> None:
    gate = await ready(fleet, "small")
    gate.answer = named_model
    await fleet.loading("big", phase=ReplicaState.RESTORING, fraction=0.3, eta_s=5.0)
    await fleet.known("big", "loading")
    lines: list[str] = []

    async def client() -> None:
        async for line in fleet.lines(chat("big")):
            lines.append(line)  # noqa: PERF401  # seen as they come

    async with asyncio.TaskGroup() as group:
        group.create_task(client())
        await until(lambda: any("loading 30.0%" in line for line in lines), "progress of the model asked for")
        failure = await fleet.failed("big")
        owner, term = fleet.leader.claim()
        await fleet.queue.fail_all("big", "model_load_failed", "it does not fit", failure, owner, term)
    assert fleet.last_headers["X-Rewarm-Model"] == "big"  # nobody knew better then
    assert ": fallback from=big to=small reason=model_load_failed\n" in lines
    told = events("".join(lines).encode())
    preface = next(event["rewarm"] for event in told if "rewarm" in event)
    assert preface["fallback"] == {"from": "big", "to": "small", "reason": "model_load_failed"}
    assert preface["model"] == "small"
    assert {event["model"] for event in told if event["choices"][0]["delta"]} == {"small"}
    assert sum("role" in event["choices"][0]["delta"] for event in told) == 1
    assert content(told) == "Hello there" and lines[-2] == "data: [DONE]\n"


async def test_the_same_as_chunks(fleet: World) -> None:
    gate = await ready(fleet, "small")
    gate.answer = named_model
    await remembered_as_failed(fleet)
    answer = await fleet.post(chat("big", stream=True), {"X-Rewarm-Progress": "chunks"})
    first, *rest = events(answer.body)
    assert first["rewarm"]["fallback"] == {"from": "big", "to": "small", "reason": "model_load_failed"}
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert not any("role" in event["choices"][0]["delta"] for event in rest)


async def test_a_padded_plain_answer_comes_from_the_fallback_too(fleet: World) -> None:
    gate = await ready(fleet, "small")
    gate.answer = named_model
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(fleet.post(chat("big")))
        await until(lambda: any(call.status for call in fleet.gateways[0].calls), "the status line is out")
        failure = await fleet.failed("big")
        owner, term = fleet.leader.claim()
        await fleet.queue.fail_all("big", "model_load_failed", "it does not fit", failure, owner, term)
    answer = asked.result()
    assert answer.body.startswith(b" ") and answer.json["model"] == "small"


# --- too late ----------------------------------------------------------------------------------------------------


async def test_an_eta_beyond_the_cut_over_is_not_waited_for(fleet: World) -> None:
    gate = await ready(fleet, "small")
    gate.answer = named_model
    await fleet.loading("big", phase=ReplicaState.RESTORING, fraction=0.1, eta_s=90.0)
    await fleet.known("big", "loading")
    answer = await fleet.post(chat("big"))
    assert answer.json["model"] == "small"
    assert answer.headers["X-Rewarm-Fallback"] == "big; reason=cut_over"

    async def nobody_waits() -> bool:
        return (await fleet.queue.waiting(["big"]))["big"].count == 0

    await until(nobody_waits, "its ticket is gone")
    assert fleet.gateways[0].view.state("big") == "loading"  # the load goes on


async def test_one_that_will_be_in_time_is_waited_for(fleet: World) -> None:
    await ready(fleet, "small")
    await fleet.loading("big", phase=ReplicaState.RESTORING, fraction=0.1, eta_s=10.0)
    await fleet.known("big", "loading")
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(fleet.post(chat("big")))

        async def waits() -> bool:
            return (await fleet.queue.waiting(["big"]))["big"].count == 1

        await until(waits, "it waits")
        await fleet.ready("big")
    assert asked.result().headers["X-Rewarm-Model"] == "big"
    assert "X-Rewarm-Fallback" not in asked.result().headers


async def test_patience_counts_where_there_is_no_cut_over(make_world: Callable[..., Any]) -> None:
    fleet = await started(make_world, MODELS.replace(", fallback_after: 20s", ""))
    await ready(fleet, "small")
    await fleet.loading("big", phase=ReplicaState.RESTORING, fraction=0.1, eta_s=90.0)
    await fleet.known("big", "loading")
    answer = await fleet.post(chat("big"), {"X-Rewarm-Max-Wait": "60s"})
    assert answer.headers["X-Rewarm-Fallback"] == "big; reason=cut_over"


# --- engines that fail -------------------------------------------------------------------------------------------


async def dies(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError


async def dies_in_mid_answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(sse(HELLO[0]) + sse(HELLO[1]))
    await asyncio.sleep(0)
    assert request.transport is not None
    request.transport.abort()
    return response


async def answers_500(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "CUDA error", "code": "x"}}, status=500)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("how", "reason"), [(dies, "worker_died"), (answers_500, "engine_failed")])
async def test_an_engine_that_fails_before_its_first_byte(fleet: World, how: Any, reason: str, stream: bool) -> None:
    (await ready(fleet, "big")).answer = how
    (await ready(fleet, "small")).answer = named_model
    answer = await fleet.post(chat("big", stream=stream))
    assert answer.status == 200
    assert answer.headers["X-Rewarm-Fallback"] == f"big; reason={reason}"


async def test_after_the_first_byte_nobody_else_answers(fleet: World) -> None:
    (await ready(fleet, "big")).answer = dies_in_mid_answer
    small = await ready(fleet, "small")
    answer = await fleet.post(chat("big", stream=True))
    assert events(answer.body)[-1]["error"]["code"] == "worker_died"
    assert answer.headers["X-Rewarm-Model"] == "big" and not small.requests


async def test_an_engine_that_fails_again_and_again_is_not_asked_any_more(fleet: World) -> None:
    big, small = await ready(fleet, "big"), await ready(fleet, "small")
    big.answer = answers_500
    for _ in range(5):
        assert (await fleet.post(chat("big"))).status == 200
    assert len(big.requests) == 5
    assert (await fleet.post(chat("big"))).headers["X-Rewarm-Fallback"] == "big; reason=breaker_open"
    assert len(big.requests) == 5 and len(small.requests) == 6


async def test_a_full_queue(fleet: World) -> None:
    """``small`` lets one request wait; the second one goes on to the third model."""
    tiny = await ready(fleet, "tiny")
    tiny.answer = named_model
    await remembered_as_failed(fleet)
    async with asyncio.TaskGroup() as group:
        held = group.create_task(fleet.post(chat("little")))

        async def waits() -> bool:
            return (await fleet.queue.waiting(["small"]))["small"].count == 1

        await until(waits, "one waits for small")
        answer = await fleet.post(chat("big"))
        assert (answer.json["model"], answer.headers["X-Rewarm-Fallback"]) == ("tiny", "big; reason=queue_full")
        await fleet.ready("small")
    assert held.result().status == 200


# --- whom the request allows -------------------------------------------------------------------------------------


async def test_a_request_may_refuse_or_choose(fleet: World) -> None:
    (await ready(fleet, "small")).answer = named_model
    (await ready(fleet, "tiny")).answer = named_model
    await remembered_as_failed(fleet)
    refused = await fleet.post(chat("big"), {"X-Rewarm-Fallback": "none"})
    assert (refused.status, refused.code) == (500, "model_load_failed")
    chosen = await fleet.post(chat("big"), {"X-Rewarm-Fallback": "tiny"})
    assert chosen.json["model"] == "tiny"
    strange = await fleet.post(chat("big"), {"X-Rewarm-Fallback": "gpt"})
    assert (strange.status, strange.code) == (400, "invalid_header")
    assert "none, small, tiny" in strange.json["error"]["message"]


async def test_a_fallback_that_cannot_do_what_is_asked_is_passed_over(fleet: World) -> None:
    small, tiny = await ready(fleet, "small"), await ready(fleet, "tiny")
    tiny.answer = named_model
    await remembered_as_failed(fleet)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"model": "big", "messages": [{"role": "user", "content": [picture]}]}
    assert (await fleet.post(body)).json["model"] == "tiny"
    assert not small.requests


async def test_a_key_gets_no_model_by_fallback_that_it_may_not_use(make_world: Callable[..., Any]) -> None:
    digest = hashlib.sha256(b"k").hexdigest()
    fleet = await started(make_world, f'{MODELS}\nkeys: [{{name: t, sha256: "{digest}", models: [big, tiny]}}]')
    small, tiny = await ready(fleet, "small"), await ready(fleet, "tiny")
    tiny.answer = named_model
    await remembered_as_failed(fleet)
    answer = await fleet.post(chat("big"), {"Authorization": "Bearer k"})
    assert answer.json["model"] == "tiny" and not small.requests


# --- nobody is left ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_with_nobody_left_the_error_is_that_of_the_model_asked_for(fleet: World, stream: bool) -> None:
    for model in ("big", "small", "tiny"):
        await remembered_as_failed(fleet, model)
    began = time.monotonic()
    answer: Reply = await fleet.post(chat("big", stream=stream))
    assert time.monotonic() - began < 1
    assert (answer.status, answer.code) == (500, "model_load_failed")
    assert "'big'" in answer.json["error"]["message"] and answer.json["reason"] == "never_fits"
    assert [told["model"] for told in answer.json["fallbacks"]] == ["small", "tiny"]
    assert answer.headers["X-Rewarm-Model"] == "big" and "X-Rewarm-Fallback" not in answer.headers


async def test_who_was_only_late_is_gone_back_to(make_world: Callable[..., Any]) -> None:
    fleet = await started(make_world, MODELS.replace("[small, tiny]", "[small]"))
    (await ready(fleet, "small")).answer = dies
    await fleet.loading("big", phase=ReplicaState.RESTORING, fraction=0.1, eta_s=90.0)
    await fleet.known("big", "loading")
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(fleet.post(chat("big")))

        async def waits() -> bool:
            return (await fleet.queue.waiting(["big"]))["big"].count == 1 and bool(fleet.gates["small-1"].requests)

        await until(waits, "it waits for big again")
        await fleet.ready("big")
    assert asked.result().status == 200 and asked.result().headers["X-Rewarm-Model"] == "big"


# --- to another machine's API ------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def api() -> AsyncIterator[UpstreamApi]:
    async with UpstreamApi() as made:
        yield made


def with_remote(api: UpstreamApi) -> str:
    far = f"{{engine: remote, url: {api.url}, key_env: UPSTREAM_KEY, upstream_model: {THEIRS}, fallback: [tiny]}}"
    return MODELS.replace("[small, tiny]", "[far]") + f"  far: {far}\n"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_across_engines_and_machines(make_world: Callable[..., Any], api: UpstreamApi, stream: bool) -> None:
    fleet = await started(make_world, with_remote(api))
    await remembered_as_failed(fleet)
    answer = await fleet.post(chat("big", stream=stream))
    assert answer.headers["X-Rewarm-Model"] == "far"
    if stream:
        told = events(answer.body)
        assert content(told) == "Hi from afar" and told[1]["model"] == "far"
    else:
        assert answer.json["model"] == "far" and answer.text == "Hi from afar"
    (await ready(fleet, "tiny")).answer = named_model
    api.answer = failing(503)
    assert (await fleet.post(chat("far"))).json["model"] == "tiny"
    assert (await fleet.post(chat("big"))).json["model"] == "tiny"  # the fallback's own fallback


async def test_a_remote_without_its_key_is_passed_over(make_world: Callable[..., Any], api: UpstreamApi) -> None:
    text = with_remote(api).replace("key_env: UPSTREAM_KEY", "key_env: NOT_SET")
    fleet = await started(make_world, text)
    (await ready(fleet, "tiny")).answer = hello
    await remembered_as_failed(fleet)
    answer = await fleet.post(chat("big"))
    assert answer.headers["X-Rewarm-Model"] == "tiny" and not api.requests
