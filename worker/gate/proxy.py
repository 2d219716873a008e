"""The gate before a `command` engine: a small server on the replica's sockets, and our own client to the engine's port.

Bodies go through untouched (the top-level ``model`` excepted, where the engine knows the model by another name),
streams are passed on piece by piece with back-pressure, and a client that goes makes the engine see a disconnect.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from rewarm.errors import EngineBadResponse, EngineUnreachable, RewarmError, WorkerDied
from rewarm.splice import splice_model
from rewarm.upstream import (
    HOP_BY_HOP,
    UpstreamDied,
    UpstreamPool,
    UpstreamProtocolError,
    UpstreamResponse,
    UpstreamUnreachable,
)
from worker.gate.gate import UNSEEN_HEADER, Answer, Gate, Pass, error_answer, is_private
from worker.gate.timing import Clock

_STAYS_HERE = HOP_BY_HOP | frozenset((b"content-length", b"expect", b"host"))
"""Beside what belongs to a connection, what both sides' servers write anew."""
_BODY_LIMIT = 64 * 2**20  # the gateway's own limit is settable and lower; this one only bounds a mistake
_END_WITHIN_S = 1.0
_log = logging.getLogger("rewarm.worker.gate")


class GateProxy:
    """``moved_s`` is when the engine last sent anything (CLOCK_MONOTONIC, s): a sign of life beside its readiness
    path."""

    def __init__(self, gate: Gate, pool: UpstreamPool, engine: str, upstream_model: str | None) -> None:
        self._gate = gate
        self._pool = pool
        self._engine = engine
        self._upstream_model = upstream_model
        self.moved_s = 0.0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers: dict[bytes, bytes] = {}
        for name, value in request.raw_headers:
            headers.setdefault(name.lower(), value)
        tcp = _is_tcp(request)
        if self._gate.is_control(request.path):
            body = await request.read()
            return _plain(self._gate.control(request.method, request.path, headers, body, tcp=tcp))
        entered = self._gate.enter(request.method, request.path, headers, tcp=tcp)
        if isinstance(entered, Answer):
            return _plain(entered)
        try:
            return await self._pass(request, None if isinstance(entered, Pass) else self._gate.times.clock())
        finally:
            entered.free()

    async def _pass(self, request: web.BaseRequest, clock: Clock | None) -> web.StreamResponse:
        body = await request.read()
        if self._upstream_model is not None:
            body = splice_model(body, self._upstream_model)
        headers = [
            (name, value)
            for name, value in request.raw_headers
            if (lower := name.lower()) not in _STAYS_HERE and not is_private(lower)
        ]
        try:
            answer = await self._pool.request(self._engine, request.method, request.path_qs, headers, body)
        except UpstreamUnreachable as error:
            if isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError):
                # The gate opens when the engine is ready, so it did listen: its process has ended.
                return _error(WorkerDied(f"the engine has ended: {error}"), (UNSEEN_HEADER, b"1"))
            return _error(EngineUnreachable(f"the engine does not accept connections: {error}"), (UNSEEN_HEADER, b"1"))
        except UpstreamDied as error:
            return _error(WorkerDied(f"the engine ended before it answered: {error}"))
        except UpstreamProtocolError as error:
            return _error(EngineBadResponse(f"the engine's answer is not HTTP: {error}"))
        try:
            return await self._relay(request, answer, clock)
        finally:
            answer.abort()  # does nothing once the answer is complete

    async def _relay(
        self, request: web.BaseRequest, answer: UpstreamResponse, clock: Clock | None
    ) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        self.moved_s = loop.time()
        out = web.StreamResponse(status=answer.status, reason=answer.reason.decode("latin-1") or None)
        for name, value in answer.headers:
            if name.lower() == b"content-length":
                out.content_length = int(value)
            elif name.lower() not in _STAYS_HERE:
                out.headers.add(name.decode("latin-1"), value.decode("latin-1"))
        await out.prepare(request)
        try:
            async for chunk in answer.chunks():
                self.moved_s = loop.time()
                if clock is not None:
                    clock.piece()
                await out.write(chunk)
        except (UpstreamDied, UpstreamProtocolError) as error:
            _log.warning("event=engine-died-in-answer error=%s", error)
            # The connection must break: a clean end would make half an answer look whole.
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the engine's answer ended early") from error
        await out.write_eof()
        return out


@asynccontextmanager
async def serve_gate(proxy: GateProxy, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Serve until the block ends; what still runs then is cut."""
    loop = asyncio.get_running_loop()

    def request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=_BODY_LIMIT)

    server = web.Server(
        proxy.handle,
        request_factory=request,
        handler_cancellation=True,  # a client that goes cancels its handler, which aborts the engine's side
        auto_decompress=False,  # bodies pass as they are
        access_log=None,
        lingering_time=30.0,  # a refusal is sent before the body is read; the rest of it must not reset the connection
    )
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_END_WITHIN_S)
    await runner.setup()
    assert runner.server is not None
    listeners: list[asyncio.AbstractServer] = []
    try:
        for listening in sockets:
            # uvloop opens a listening socket by the kind of server it is asked for.
            if listening.family == socket.AF_UNIX:
                listeners.append(await loop.create_unix_server(runner.server, sock=listening))
            else:
                listeners.append(await loop.create_server(runner.server, sock=listening))
        yield
    finally:
        for listener in listeners:
            listener.close()
        await runner.cleanup()


def _is_tcp(request: web.BaseRequest) -> bool:
    protocol: RequestHandler = request.protocol
    transport = protocol.transport
    if transport is None:
        return True
    peer = transport.get_extra_info("socket")
    return peer is None or peer.family != socket.AF_UNIX


def _plain(answer: Answer) -> web.Response:
    out = web.Response(status=answer.status, body=answer.body)
    for name, value in answer.headers:
        if name != b"content-length":
            out.headers[name.decode()] = value.decode("latin-1")
    return out


def _error(error: RewarmError, *headers: tuple[bytes, bytes]) -> web.Response:
    return _plain(error_answer(error, *headers))
