"""The client's side of one request: nothing sent, then committed (the status line is out), then the answer or an
error."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from gateway.calls import Call
from gateway.failures import FailedAnswers, digest_of
from gateway.headers import fallback_of
from gateway.holding import ProgressMode
from gateway.http import Answer, Response, StreamResponse, header_lines
from gateway.wire import (
    NEVER,
    Cadence,
    Chunks,
    PlainCadence,
    SilentCadence,
    StreamCadence,
    Timings,
    TypedChunks,
    comment,
    fallback_comment,
)
from rewarm.errors import RewarmError
from rewarm.messages import Progress

_log = logging.getLogger("rewarm.gateway.reply")

STREAM_HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache, no-transform"}
"""Against proxies that would collect a stream before they pass it on."""

STREAM_LINES = header_lines(STREAM_HEADERS)

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"

_dump = msgspec.json.Encoder().encode


def error_response(error: RewarmError, request_id: str | None = None, more: dict[str, str] | None = None) -> Response:
    """The error as a response of its own: true status, headers that tell clients whether to try again."""
    headers = {**error.headers(), **(more or {}), "Content-Type": JSON, "Server": "rewarm"}
    if request_id is not None:
        headers["X-Request-Id"] = request_id
    return Response(status=error.status, headers=headers, body=_dump(error.body()))


class Reply:
    """``response`` is None until the status line has been sent. Signs of life are due by :class:`Cadence`."""

    __slots__ = (
        "_cadence",
        "_chunks",
        "_failed",
        "_last_sign",
        "_mode",
        "_timings",
        "answering",
        "call",
        "events",
        "now",
        "response",
        "torn",
    )

    def __init__(
        self,
        call: Call,
        mode: ProgressMode,
        timings: Timings,
        failed: FailedAnswers,
        loop: asyncio.AbstractEventLoop,  # asked for in every request it would cost a system call each time
    ) -> None:
        self.call = call
        self.response: StreamResponse | None = None
        self.answering = False  # the engine's own bytes go out: from now on no padding and no progress
        self.events = False  # and they are events
        self.torn = False  # the client has been given a part of an event
        self._last_sign = 0.0
        self._mode = mode
        self._timings = timings
        self._failed = failed
        self._cadence: Cadence | None = None
        self._chunks: Chunks | None = None
        self.now = loop.time

    @property
    def committed(self) -> bool:
        return self.response is not None

    @property
    def chunks(self) -> Chunks:
        """Made when first needed: most requests never wait."""
        if self._chunks is None:
            call = self.call
            self._chunks = (TypedChunks if call.typed else Chunks)(
                chat=call.chat, request_id=call.id, model=call.entry.model, created_s=call.created_ms // 1000
            )
            # An engine that has spoken has sent the role itself.
            self._chunks.role_sent = self.answering
        return self._chunks

    @property
    def cadence(self) -> Cadence:
        if self._cadence is None:
            call = self.call
            if self._mode == "none":
                self._cadence = SilentCadence()
            elif call.stream:
                self._cadence = StreamCadence(call.started_at, self._timings, self.chunks, self._mode)
            else:
                self._cadence = PlainCadence(call.started_at, self._timings)
        return self._cadence

    def due(self) -> float:
        """When the next sign is due; without making a cadence for a request that will not need one."""
        timings = self._timings
        if self._mode == "none":
            return NEVER
        if self.answering:
            return max(self.call.last_at, self._last_sign) + timings.comment_every_s if self.events else NEVER
        if self._cadence is not None:
            return self._cadence.due()
        wait_s = timings.stream_status_after_s if self.call.stream else timings.plain_status_after_s
        return self.call.started_at + wait_s

    # --- while it waits ------------------------------------------------------------------------------------------

    async def sign(self, progress: Progress | None, note: str) -> None:
        """Send what is due now, if anything; the first sign commits. Raise ConnectionError when the client is gone."""
        now = self.now()
        if now < self.due():
            return
        self._last_sign = now
        # Between the engine's events only a comment may stand.
        data = comment(None, note) if self.answering else self.cadence.poll(now, progress, note)
        if data:
            await self.write(data)

    async def write(self, data: bytes) -> None:
        if self.response is None:
            await self.commit(200, self._own_headers())
            if self.call.fallback and self.call.stream and self._mode != "none":
                data = self._fallback_sign() + data
        response = self.response
        if response is not None:
            await response.write(data)

    async def commit(self, status: int, lines: list[bytes], length: int | None = None) -> StreamResponse:
        """``lines`` are header lines ready to be sent. Raise ConnectionResetError when the client is gone."""
        response = StreamResponse(status=status, lines=lines, length=length)
        self.call.status = status
        await response.prepare(self.call.request)
        self.response = response
        return response

    async def switched(self) -> None:
        """Another model is to answer: said at once where the stream has begun; headers say it otherwise."""
        call = self.call
        if self._chunks is not None:
            self._chunks.serve_by(call.entry.model)
        if self.response is not None and call.stream and call.fallback and self._mode != "none":
            await self.write(self._fallback_sign())

    async def announce(self, rewarm: dict[str, Any]) -> bool:
        """The same at the very beginning of a stream, as its first event. True when that carried the role."""
        if self._mode == "none":
            return False
        if self._mode == "comments" or self.call.typed:
            await self.write(self._fallback_comment())
            return False
        await self.preface(rewarm)
        return self.chunks.role_sent

    def _fallback_sign(self) -> bytes:
        """In a stream that waits on."""
        call = self.call
        if self._mode != "chunks" or call.typed:
            return self._fallback_comment()
        said = {"from": call.asked, "to": call.entry.model, "reason": call.fallback}
        return self.chunks.no_op({"state": "fallback", "model": call.entry.model, "fallback": said})

    def _fallback_comment(self) -> bytes:
        return fallback_comment(self.call.asked, self.call.entry.model, self.call.fallback)

    def _own_headers(self) -> list[bytes]:
        """Of a response that is committed before the engine has said anything."""
        headers = dict(STREAM_HEADERS)
        headers["Content-Type"] = EVENTS if self.call.stream else JSON
        headers["Server"] = "rewarm"
        headers["X-Request-Id"] = self.call.id
        headers["X-Rewarm-Model"] = self.call.entry.model
        headers["X-Rewarm-Start"] = self.call.start
        if self.call.fallback:
            headers["X-Rewarm-Fallback"] = fallback_of(self.call)
        return header_lines(headers)

    # --- the ends ------------------------------------------------------------------------------------------------

    async def preface(self, rewarm: dict[str, Any]) -> None:
        """The no-op chunk before the engine's first data: what can no longer be said in headers."""
        told = self.chunks.no_op(rewarm)
        if told:
            await self.write(told)

    async def fail(self, error: RewarmError) -> Answer:
        """End the request with ``error``, in the way that what was sent already leaves open."""
        call = self.call
        call.error = error.code
        if self.response is None:
            call.status = error.status
            more = {"X-Rewarm-Model": call.entry.model, "X-Rewarm-Start": call.start}
            if call.fallback:
                more["X-Rewarm-Fallback"] = fallback_of(call)
            return error_response(error, call.id, more)
        if not call.stream:
            return self.break_off(error.status, error.headers(), _dump(error.body()), error.code)
        return await self.fail_stream({**error.payload(), **error.extra})

    async def fail_stream(self, payload: dict[str, Any]) -> StreamResponse:
        """Never a finish reason that would make a torn answer look whole."""
        if self.response is None:
            raise RuntimeError("a stream that was not begun cannot end with an event")
        tail = self.chunks.error_end(payload)
        await self.response.write(b"\n\n" + tail if self.torn else tail)
        await self.response.write_eof()
        return self.response

    def break_off(self, status: int, headers: dict[str, str], body: bytes, code: str | None) -> StreamResponse:
        """A 200 with an error inside would be taken for an answer: cut the connection, keep the truth for the retry."""
        call = self.call
        if self.response is None:
            raise RuntimeError("a response that was not begun cannot be broken off")
        self._failed.remember(digest_of(call.caller.tenant, call.path, call.body), status, headers, body, code)
        call.request.abort()
        return self.response
