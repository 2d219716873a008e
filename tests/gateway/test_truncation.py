"""An answer that a proxy cut off and ended as if it were whole never reaches a client as whole."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.wire.truncation import cut_off, tail_of
from tests.gateway.world import HELLO, World, chat, sse, streamed
from tests.knative.fakes.timings import ACTIVATOR_TIMEOUT_TEXT, TIMEOUT_TEXT

CUT = [TIMEOUT_TEXT, ACTIVATOR_TIMEOUT_TEXT]


async def counted(world: World) -> None:
    assert b'rewarm_errors_total{code="stream_truncated",model="m"} 1.0' in (await world.get("/metrics")).body


@pytest.mark.redis
@pytest.mark.asyncio
@pytest.mark.parametrize("text", CUT)
async def test_a_stream_that_ends_in_a_timeouts_text(world: World, text: bytes) -> None:
    gate = await world.ready("m")
    gate.answer = lambda request, body: streamed(request, sse(*HELLO[:3]), text)
    await world.known("m")
    answer = await world.post(chat(stream=True))
    assert text not in answer.body
    events = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    assert [json.loads(event) for event in events[:3]] == list(HELLO[:3])
    assert json.loads(events[-2])["error"]["code"] == "stream_truncated"
    await counted(world)


@pytest.mark.redis
@pytest.mark.asyncio
async def test_a_stream_that_was_whole_before_its_limit_is_whole(world: World) -> None:
    gate = await world.ready("m")
    gate.answer = lambda request, body: streamed(request, sse(*HELLO), TIMEOUT_TEXT)
    await world.known("m")
    assert (await world.post(chat(stream=True))).body == sse(*HELLO)


@pytest.mark.redis
@pytest.mark.asyncio
@pytest.mark.parametrize("text", CUT)
async def test_a_short_answer_that_is_cut_off_is_an_error(world: World, text: bytes) -> None:
    gate = await world.ready("m")

    async def answer(request: web.Request, body: dict[str, Any]) -> web.Response:
        return web.Response(body=b'{"id": "x", "choices": [' + text, content_type="application/json")

    gate.answer = answer
    await world.known("m")
    got = await world.post(chat())
    assert got.status >= 500
    assert json.loads(got.body)["error"]["code"] == "stream_truncated"
    await counted(world)


@pytest.mark.redis
@pytest.mark.asyncio
async def test_a_long_answer_that_is_cut_off_does_not_end_as_if_it_were_whole(world: World) -> None:
    gate = await world.ready("m")

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"data": [' + b"0.5, " * 200_000)
        await response.write(TIMEOUT_TEXT)
        await response.write_eof()
        return response

    gate.answer = answer
    await world.known("m")
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.post(chat())


@pytest.mark.parametrize("text", CUT)
def test_however_the_bytes_come_the_end_is_seen(text: bytes) -> None:
    body = b'{"a": "' + b"x" * 200 + text
    for size in (1, 7, 64, 65, len(body)):
        tail = b""
        for at in range(0, len(body), size):
            tail = tail_of(tail, body[at : at + size])
        assert cut_off(tail)
        assert len(tail) <= 64


def test_an_answer_that_only_speaks_of_it_is_whole() -> None:
    assert not cut_off(b'{"text": "request timeout"}')
    assert not cut_off(b"")
