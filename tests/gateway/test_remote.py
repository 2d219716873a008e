"""Remote models: somebody else's API behind our door, and every way in which it goes wrong."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from cryptography import x509

from tests.gateway.certificates import certificate
from tests.gateway.upstream_api import (
    KEY,
    THEIRS,
    Answer,
    UpstreamApi,
    failing,
    half_a_stream,
    too_many_at_first,
    too_many_in_the_stream,
    well,
    without_an_end,
)
from tests.gateway.world import World, chat, config, until

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

MODELS = """
gateway: {{listen: "127.0.0.1:0"}}
models:
  far:
    engine: remote
    url: {url}
    key_env: UPSTREAM_KEY
    upstream_model: {theirs}
    aliases: [there]
    concurrency: 2
    {more}
"""


@pytest_asyncio.fixture
async def api() -> AsyncIterator[UpstreamApi]:
    async with UpstreamApi() as made:
        yield made


@pytest_asyncio.fixture
async def fleet(make_world: Callable[..., Any], api: UpstreamApi) -> World:
    return await remote(make_world, api.url)


async def remote(make_world: Callable[..., Any], url: str, more: str = "", key: str = KEY) -> World:
    world: World = await make_world(config(MODELS.format(url=url, theirs=THEIRS, more=more)))
    await world.gateway(environ={"UPSTREAM_KEY": key})
    await world.known("far", "ready")
    return world


# --- what it is --------------------------------------------------------------------------------------------------


async def test_a_remote_model_answers_under_our_name(fleet: World, api: UpstreamApi) -> None:
    answer = await fleet.post(chat("there", keep_alive="5m"), {"Cookie": "c=1", "X-Own": "1"})
    assert (answer.status, answer.text) == (200, "Hi from afar")
    assert answer.json["model"] == "far" == answer.headers["X-Rewarm-Model"]
    assert answer.json["usage"]["completion_tokens"] == 3
    assert "Set-Cookie" not in answer.headers and "X-Ratelimit-Remaining" not in answer.headers
    path, headers, body = api.requests[0]
    assert path == "/api/v1/chat/completions"
    assert body == {"model": THEIRS, "messages": [{"role": "user", "content": "Hi"}]}
    assert headers["authorization"] == f"Bearer {KEY}"
    assert not {"cookie", "x-own", "x-request-id", "x-rewarm-band"} & headers.keys()


async def test_its_stream_passes_through_under_our_name(fleet: World) -> None:
    lines = [line async for line in fleet.lines(chat("far"))]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "Hi from afar"
    assert {event["model"] for event in events if event["choices"][0]["finish_reason"] is None} == {"far"}
    assert lines[-2] == "data: [DONE]\n"
    assert not any("PROCESSING" in line for line in lines)


async def test_the_clients_own_key_stays_here(make_world: Callable[..., Any], api: UpstreamApi) -> None:
    own = "client-secret"
    digest = hashlib.sha256(own.encode()).hexdigest()
    keys = f'keys: [{{name: team, sha256: "{digest}"}}]'
    world: World = await make_world(config(MODELS.format(url=api.url, theirs=THEIRS, more="") + keys))
    await world.gateway(environ={"UPSTREAM_KEY": KEY})
    await world.known("far", "ready")
    answer = await world.post(chat("far"), {"Authorization": f"Bearer {own}"})
    assert answer.status == 200
    assert own not in json.dumps(api.requests)


async def test_it_is_listed_like_any_other(fleet: World) -> None:
    models = {model["id"]: model for model in (await fleet.get("/v1/models")).json["data"]}
    assert set(models) == {"far", "there"}
    assert models["far"]["rewarm"]["state"] == "ready" and models["far"]["rewarm"]["engine"] == "remote"


async def test_a_request_of_the_clients_own_fault_is_told_in_the_upstreams_words(
    fleet: World, api: UpstreamApi
) -> None:
    api.answer = failing(400)
    answer = await fleet.post(chat("far"))
    assert (answer.status, answer.json["error"]["message"]) == (400, "theirs")


async def test_no_more_at_once_than_the_bound_and_the_rest_in_order(fleet: World, api: UpstreamApi) -> None:
    go = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await go.wait()
        return await well(request, body)

    api.answer = slow
    async with asyncio.TaskGroup() as group:
        asked = []
        for number in range(5):
            asked.append(group.create_task(fleet.post(chat("far", seed=number))))
            await until(lambda n=number: len(fleet.gateways[0].calls) == n + 1, "it is here")  # type: ignore[misc]
        await until(lambda: api.running == 2, "two are under way")
        await until(lambda: fleet.gateways[0].holding.of_model("far") == 3, "three wait")
        go.set()
    assert [task.result().status for task in asked] == [200] * 5
    assert api.peak == 2
    assert [body["seed"] for _, _, body in api.requests] == [0, 1, 2, 3, 4]


async def test_a_client_that_goes_leaves_its_place(fleet: World, api: UpstreamApi) -> None:
    async def never(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    api.answer = never
    tasks = [asyncio.create_task(fleet.post(chat("far"))) for _ in range(3)]
    await until(lambda: api.running == 2 and fleet.gateways[0].holding.of_model("far") == 1, "two run, one waits")
    for task in tasks:
        task.cancel()
    await until(lambda: api.running == 0 and not len(fleet.gateways[0].calls), "all are gone")
    api.answer = well
    assert (await fleet.post(chat("far"))).status == 200


# --- what goes wrong ---------------------------------------------------------------------------------------------


async def test_a_wrong_key_is_our_fault_and_not_the_clients(
    make_world: Callable[..., Any], api: UpstreamApi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world = await remote(make_world, api.url, key="sk-wrong-key-9876")
    answer = await world.post(chat("far"))
    assert (answer.status, answer.code) == (502, "upstream_refused_key")
    for secret in ("sk-wrong-key-9876", KEY[:12]):
        assert secret not in answer.body.decode() and secret not in caplog.text


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (failing(500), 502, "upstream_failed"),
        (failing(302, Location="https://elsewhere.example/v1"), 502, "upstream_redirected"),
        (failing(200, body="<html>Welcome</html>", kind="text/html"), 502, "upstream_bad_answer"),
        (failing(200, body="no json"), 502, "upstream_bad_answer"),
        (failing(404), 502, "upstream_bad_answer"),
        (failing(429), 503, "upstream_rate_limited"),
    ],
    ids=["500", "redirect", "html", "no json", "404", "429"],
)
async def test_bad_answers_are_typed(fleet: World, api: UpstreamApi, answer: Answer, status: int, code: str) -> None:
    api.answer = answer
    for stream in (False, True):
        told = await fleet.post(chat("far", stream=stream))
        assert (told.status, told.code) == (status, code)
        assert "elsewhere.example/v1" not in told.body.decode()
    assert len(api.requests) == 2  # nothing is followed, nothing tried again


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (half_a_stream, "upstream_failed"),
        (without_an_end, "stream_truncated"),
        (too_many_in_the_stream, "upstream_rate_limited"),
    ],
    ids=["half an event", "no [DONE]", "429 in mid-stream"],
)
async def test_a_stream_that_breaks_off_ends_with_an_error(
    fleet: World, api: UpstreamApi, answer: Answer, code: str
) -> None:
    api.answer = answer
    lines = [line async for line in fleet.lines(chat("far"))]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events if "choices" in e) == "Hi"
    assert events[-1]["error"]["code"] == code
    assert lines[-2] == "data: [DONE]\n"
    assert len(api.requests) == 1


async def test_an_error_in_the_place_of_the_first_chunk_has_its_status(fleet: World, api: UpstreamApi) -> None:
    api.answer = too_many_at_first
    answer = await fleet.post(chat("far", stream=True))
    assert (answer.status, answer.code) == (503, "upstream_rate_limited")


async def test_nobody_listens(make_world: Callable[..., Any], unused_tcp_port: int) -> None:
    world = await remote(make_world, f"http://127.0.0.1:{unused_tcp_port}/v1")
    answer = await world.post(chat("far"))
    assert (answer.status, answer.code) == (502, "upstream_unreachable")


async def test_certificates_are_verified(make_world: Callable[..., Any], tmp_path: Path) -> None:
    ours = certificate(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(ours)
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(UpstreamApi(tls))
        stranger = await remote(make_world, good.url)
        answer = await stranger.post(chat("far"))
        assert (answer.status, answer.code) == (502, "upstream_untrusted")
        assert not good.requests  # the key was not shown to it
        trusted = await remote(make_world, good.url, f"ca_file: {ours}")
        assert (await trusted.post(chat("far"))).text == "Hi from afar"
        streamed = [line async for line in trusted.lines(chat("far"))]
        assert streamed[-2] == "data: [DONE]\n"
        other_name = await remote(make_world, good.url.replace("127.0.0.1", "localhost"), f"ca_file: {ours}")
        assert (await other_name.post(chat("far"))).code == "upstream_untrusted"


# --- the breaker -------------------------------------------------------------------------------------------------


async def test_after_failures_in_a_row_nothing_is_sent_for_a_while(fleet: World, api: UpstreamApi) -> None:
    api.answer = failing(500)
    for _ in range(5):
        assert (await fleet.post(chat("far"))).code == "upstream_failed"
    refused = await fleet.post(chat("far"))
    assert (refused.status, refused.code) == (503, "breaker_open")
    assert refused.headers["Retry-After"] == "5"
    assert len(api.requests) == 5
    assert b'rewarm_breaker_state{model="far"} 2.0' in (await fleet.get("/metrics")).body
    told = (await fleet.get("/v1/models/far")).json["rewarm"]
    assert told["breaker"]["state"] == "open" and told["breaker"]["code"] == "upstream_failed"


async def test_an_upstream_that_asks_for_a_pause_gets_it_at_once(fleet: World, api: UpstreamApi) -> None:
    api.answer = failing(429, **{"Retry-After": "1"})
    assert (await fleet.post(chat("far"))).code == "upstream_rate_limited"
    assert (await fleet.post(chat("far"))).code == "breaker_open"
    assert len(api.requests) == 1
    api.answer = well

    async def answered() -> bool:
        return (await fleet.post(chat("far"))).status == 200

    await until(answered, "the probe closes it")
    assert b"rewarm_breaker_state{" not in (await fleet.get("/metrics")).body
