"""One request's response, as its caller sees it. The connection fills it in; it outlives the connection's part in
it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from rewarm.upstream.errors import (
    StaleConnection,
    UpstreamDied,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamUnreachable,
    UpstreamUnread,
)
from rewarm.upstream.limits import READ_BUFFER_BYTES

if TYPE_CHECKING:
    from rewarm.upstream.connection import Connection
    from rewarm.upstream.pool import Endpoint


class UpstreamResponse:
    """``status``, ``reason`` and ``headers`` are valid once :meth:`ready` has returned True.

    ``complete`` says that the whole body has arrived (it may still wait in the buffer). A caller that does not read to
    the end must call :meth:`abort`: the engine then sees the connection close, and stops generating.
    """

    __slots__ = (
        "_body",
        "_chunks",
        "_connection",
        "_endpoint",
        "_error",
        "_head",
        "_loop",
        "_nudged",
        "_retried",
        "_size",
        "_waiter",
        "complete",
        "head_seen",
        "headers",
        "is_head",
        "reason",
        "received",
        "status",
        "whole",
    )

    def __init__(self, endpoint: Endpoint, head: bytes, body: bytes, is_head: bool) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self.is_head = is_head
        self.received = False  # any byte of a response has come: the request must not be sent again
        self.head_seen = False
        self.whole = False  # a short body of known length: wake the caller when it is all there
        self._endpoint = endpoint
        self._head = head
        self._body = body
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: UpstreamError | None = None
        self._connection: Connection | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._nudged = False
        self._retried = False
        self._loop = endpoint.loop

    # --- the caller's side ---------------------------------------------------------------------------------------

    async def ready(self) -> bool:
        """Wait for the head. False: nudged, nothing came yet. Raise UpstreamUnreachable, …Died, …ProtocolError."""
        while True:
            if self.complete or (self.head_seen and not self.whole):
                return True
            if self._error is not None:
                if self.head_seen:
                    return True  # the status is known; reading the body will raise
                if not await self._again():
                    raise self._error
                continue
            if self._nudged:
                self._nudged = False
                return False
            await self._wait()

    async def next(self) -> bytes | None:
        """The body bytes that have arrived since the last call, b"" when nudged, None at the end. Raise
        UpstreamDied."""
        while True:
            if self._chunks:
                return self._take()
            if self.complete:
                return None
            if self._error is not None:
                raise self._error
            if self._nudged:
                self._nudged = False
                return b""
            await self._wait()

    async def chunks(self) -> AsyncIterator[bytes]:
        """All body bytes as they arrive, never an empty piece. Raise UpstreamDied when the body ends early."""
        while (chunk := await self.next()) is not None:
            if chunk:
                yield chunk

    async def read(self, limit: int) -> bytes:
        """The whole body. Raise UpstreamProtocolError when it is larger than ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                self.abort()
                raise UpstreamProtocolError(f"the response body exceeds {limit} bytes")
            parts.append(chunk)
        return b"".join(parts)

    def take_whole(self) -> bytes:
        """The buffered rest of a ``complete`` response, without waiting."""
        return self._take() if self._chunks else b""

    def nudge(self) -> None:
        """Make the caller's pending (or next) :meth:`ready` or :meth:`next` return without data."""
        self._nudged = True
        self.wake()

    def abort(self) -> None:
        """Close the connection unless the response is complete. Safe to call at any time, any number of times."""
        connection = self._connection
        if connection is not None:
            self._connection = None
            connection.drop()
        if not self.complete and self._error is None:
            self._error = UpstreamError("aborted by the caller")
            self.wake()

    # --- the connection's side -----------------------------------------------------------------------------------

    def attach(self, connection: Connection) -> None:
        self._connection = connection
        connection.begin(self, self._head, self._body)

    def detach(self) -> None:
        """The connection is free again: everything has arrived."""
        self._connection = None
        self._head = self._body = b""

    def feed(self, data: bytes) -> bool:
        """Buffer body bytes; False when the connection should stop reading."""
        self._chunks.append(data)
        self._size += len(data)
        return self._size <= READ_BUFFER_BYTES

    def fail(self, error: UpstreamError) -> None:
        self._connection = None
        if self._error is None:
            self._error = error
        self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def wake_if_due(self) -> None:
        """After a read: wake the caller, unless it waits for a short body of which a part is missing."""
        if self.complete or (self.head_seen and not self.whole):
            self.wake()

    # --- inside --------------------------------------------------------------------------------------------------

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _take(self) -> bytes:
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        if self._size > READ_BUFFER_BYTES and self._connection is not None:
            self._connection.resume_reading()
        self._size = 0
        return data

    async def _again(self) -> bool:
        """A kept connection may close just as we reuse it. Once, on a new connection, if nothing of a response came.

        Where there is none: UpstreamDied, for the request was sent, and may be what the engine died of; but not if
        it was not read.
        """
        error = self._error
        unread = isinstance(error, UpstreamUnread) and error.kept
        if self._retried or self.received or not (unread or isinstance(error, StaleConnection)):
            return False
        self._retried = True
        self._error = None
        try:
            connection = await self._endpoint.connect()
        except UpstreamUnreachable as none:
            self._error = none if unread else UpstreamDied(f"{error}, and no new one comes about: {none}")
            return False
        self.attach(connection)
        return True
