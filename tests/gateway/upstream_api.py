"""Somebody else's OpenAI-compatible API for tests: a real server on a real port, with TLS where asked, that answers as
the test says and remembers what it was sent."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.gateway.world import chunk, sse

KEY = "sk-upstream-secret-0123456789"
THEIRS = "their-model"

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class UpstreamApi:
    """``async with UpstreamApi() as api``; ``api.url`` is the base that a configuration names."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.answer: Answer = well
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []  # path, headers in lower case, body
        self.running = self.peak = 0
        self._tls = tls
        self._host = host
        app = web.Application()
        app.router.add_post("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

    async def __aenter__(self) -> UpstreamApi:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self._host}:{self.port}/api/v1"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((request.path, {k.lower(): v for k, v in request.headers.items()}, body))
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            if request.headers.get("Authorization") != f"Bearer {KEY}":
                # As OpenAI does: with a part of the key in its words.
                said = {"error": {"message": f"Incorrect API key provided: {KEY[:12]}", "code": "invalid_api_key"}}
                return web.json_response(said, status=401)
            return await self.answer(request, body)
        finally:
            self.running -= 1


async def well(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    if body.get("stream"):
        return await stream(request, b": PROCESSING\n\n", *(sse(event) for event in words("Hi", " from", " afar")))
    message = {"role": "assistant", "content": "Hi from afar"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    told = {"id": "u1", "object": "chat.completion", "model": THEIRS, "created": 1, "choices": choices, "usage": usage}
    return web.json_response(told, headers={"X-Ratelimit-Remaining": "7", "Set-Cookie": "theirs=1"})


def words(*parts: str) -> list[dict[str, Any] | str]:
    events: list[dict[str, Any] | str] = [{**chunk(content=part), "model": THEIRS} for part in parts]
    return [{**chunk(role="assistant", content=""), "model": THEIRS}, *events, {**chunk(finish="stop")}, "[DONE]"]


async def stream(request: web.Request, *pieces: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    await response.write_eof()
    return response


def failing(status: int, *, body: str = "", kind: str = "application/json", **headers: str) -> Answer:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        text = body or json.dumps({"error": {"message": "theirs", "code": "theirs"}})
        return web.Response(status=status, text=text, content_type=kind, headers=headers)

    return answer


async def half_a_stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """The connection is cut within an event."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(sse(*words("Hi")[:2]) + b'data: {"choices": [{"ind')
    await asyncio.sleep(0)
    assert request.transport is not None
    request.transport.abort()
    return response


async def without_an_end(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, *(sse(event) for event in words("Hi")[:2]))


async def too_many_in_the_stream(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    error = {"error": {"message": "slow down", "code": 429}}
    return await stream(request, *(sse(event) for event in words("Hi")[:2]), sse(error))


async def too_many_at_first(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    return await stream(request, sse({"error": {"message": "slow down", "type": "rate_limit_error"}}))
