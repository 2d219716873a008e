"""The gate as ASGI middleware, around vLLM's own FastAPI application.

A slot lasts as long as the application works on the request: it is freed when the application returns, raises or is
cancelled. That it stops on a client's disconnect is the application's part (vLLM's handlers and Starlette's streams
listen for it); freeing the slot earlier would let more run than the engine has slots.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from worker.gate.gate import Answer, Gate, Pass, is_private
from worker.gate.timing import Clock

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_CONTROL_BODY_LIMIT = 1024 * 1024


class GateMiddleware:
    """Serve with uvicorn on the sockets of :func:`worker.gate.open_gate_sockets`. ``scope["server"]`` tells a unix
    connection (None, or a path with port None) from TCP (host and port)."""

    def __init__(self, app: Application, gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket would run outside the ledger
            await send({"type": "websocket.close", "code": 1008})
            return
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, value)
        method, path, tcp = scope["method"], scope["path"], _is_tcp(scope)
        if self.gate.is_control(path):
            body = await _read(receive)
            await _answer(send, self.gate.control(method, path, headers, body, tcp=tcp))
            return
        entered = self.gate.enter(method, path, headers, tcp=tcp)
        if isinstance(entered, Answer):
            await _answer(send, entered)
            return
        try:
            if not self.gate.is_awake:
                await self.gate.awake()
            inner = dict(scope)
            inner["headers"] = [(name, value) for name, value in scope["headers"] if not is_private(name)]
            await self.app(inner, receive, send if isinstance(entered, Pass) else _timed(send, self.gate.times.clock()))
        finally:
            entered.free()


def _timed(send: Send, clock: Clock) -> Send:
    async def timed(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body" and message.get("body"):
            clock.piece()
        await send(message)

    return timed


def _is_tcp(scope: Scope) -> bool:
    server = scope.get("server")
    return server is not None and server[1] is not None


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        part: bytes = message.get("body", b"")
        size += len(part)
        if size <= _CONTROL_BODY_LIMIT:
            parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _answer(send: Send, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": list(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body})
