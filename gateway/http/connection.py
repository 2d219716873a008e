"""One client's connection: bytes in, one answer at a time in the order of the requests."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import termios
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from gateway.http.limits import LINGER_BYTES, LINGER_S
from gateway.http.reader import Reader
from gateway.http.request import BodyUnreadable, Request
from gateway.http.response import Answer

if TYPE_CHECKING:
    from gateway.http.server import Server

_log = logging.getLogger("rewarm.gateway.http")

Handler = Callable[[Request], Awaitable[Answer]]
"""Returns what to send; it may have sent a part of it already. Cancelled when the client goes away."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(asyncio.Protocol):
    __slots__ = (
        "_answering",
        "_close_at",
        "_drained",
        "_lingering",
        "_loop",
        "_malformed",
        "_queue",
        "_reader",
        "_reading",
        "_request",
        "_server",
        "_taken",
        "_taken_at",
        "_task",
        "_thrown",
        "_written",
        "paused",
        "quiet_since",
        "remote",
        "transport",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.loop
        self.transport: asyncio.Transport | None = None
        # What is being answered, and what came behind it.
        self._queue: deque[Request] = deque()
        self._reader = Reader(self, self._queue)
        self._request: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._answering = False  # something of the answer has gone out
        self._malformed: Exception | None = None  # answered after the requests before it; nothing is read any more
        self._lingering = False
        self._close_at = 0.0
        self._thrown = 0
        self._written = 0  # bytes, in all
        self._taken = -1  # of them by the client, when they were last counted
        self._taken_at = 0.0  # when that had grown
        self._reading = True
        self._drained: asyncio.Future[None] | None = None
        self.paused = False
        self.quiet_since = self._loop.time()  # idle, or waiting for the rest of a head, since then
        self.remote: str | None = None

    # --- the transport -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.remote = peer[0]
            sock = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.entered(self)

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._malformed is not None:
            self._throw_away(len(data))
            return
        problem = self._reader.feed(data)
        if problem is not None:
            self._break_off(problem)
        if self._task is None:
            self._next()
        elif self._queue:
            self.pause_reading()  # pipelined: what has come is served in turn, more must wait

    def eof_received(self) -> bool:
        return False  # a client that closes its side is gone: nobody who waits for an answer does that

    def connection_lost(self, error: Exception | None) -> None:
        self._server.left(self)
        self.transport = None
        self._queue.clear()
        if self._drained is not None and not self._drained.done():
            self._drained.set_exception(ConnectionResetError("the client is gone"))
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _break_off(self, problem: Exception) -> None:
        """Nothing after this can be understood. What came before is still answered, in its turn."""
        unfinished = self._reader.unfinished
        self._malformed = problem
        if unfinished is not None:
            self._reader.unfinished = None
            unfinished.keep_alive = False
            unfinished.fail(BodyUnreadable(str(problem)))
        elif self._request is not None or self._queue:
            last = self._queue[-1] if self._queue else self._request
            if last is not None and not last.keep_alive:
                self._malformed = None  # it comes after a `Connection: close`: nobody waits for an answer to it
                self._lingering = True

    # --- answering -----------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """The next request's turn, or silence, or the end."""
        if self.transport is None:
            return
        if self._queue:
            self._request = self._queue.popleft()
            self._answering = False
            self._task = self._loop.create_task(self._answer(self._request))
        elif self._malformed is not None:
            malformed, self._malformed = self._malformed, None
            self._lingering = True
            self._task = self._loop.create_task(self._tell(malformed))
        elif self._server.closing:
            self.transport.close()
        else:
            self.quiet_since = self._loop.time()
            self.resume_reading()

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._server.handler(request)
            await response.finish(request)
        except ConnectionError:
            self.abort()
        except asyncio.CancelledError:
            self.abort()  # the server ends, or the client is gone
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a handler raises ends as an answer, not as a dead task
            _log.error("path=%s failed", request.path, exc_info=error)
            await self._excuse(request, error)
        finally:
            self._task = self._request = None
            self._after(request)

    async def _excuse(self, request: Request, error: Exception) -> None:
        """A bug of ours: told if nothing of an answer has gone out, else the connection is cut."""
        if self._answering:
            self.abort()
            return
        response = self._server.explain(error)
        response.force_close()
        try:
            await response.finish(request)
        except ConnectionError:
            self.abort()

    async def _tell(self, malformed: Exception) -> None:
        """What is not HTTP is answered like everything else: with a code."""
        nobody = Request(self, "", "/", [], http_1_0=False, keep_alive=False, content_length=None)
        try:
            await self._server.explain(malformed).finish(nobody)
        except ConnectionError:
            pass
        finally:
            self._task = None
            self._linger()

    def _after(self, request: Request) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if request.complete and request.keep_alive:
            self._next()
        elif request.complete and self._malformed is None:
            self.transport.close()
        else:
            self._malformed = None
            self._linger()

    def _linger(self) -> None:
        """Close our side, and let the client finish what it is sending: it might not see the answer otherwise."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._lingering = True
        self._reader.unfinished = None
        self._close_at = self._loop.time() + LINGER_S
        if transport.can_write_eof():
            transport.write_eof()
        self.resume_reading()

    def _throw_away(self, size: int) -> None:
        self._thrown += size
        if self._thrown > LINGER_BYTES:
            self.abort()

    def sweep(self, now: float, keep_alive_s: float, write_stall_s: float) -> None:
        """Called now and then: close what has been silent for too long, or takes nothing of what it is sent."""
        if self.transport is None:
            return
        if self._close_at and now > self._close_at:
            self.transport.abort()
        elif self.transport.get_write_buffer_size():
            taken = self._written - self.waiting_bytes()
            if taken != self._taken:
                self._taken, self._taken_at = taken, now
            elif now - self._taken_at > write_stall_s:
                path = self._request.path if self._request is not None else ""
                _log.info("path=%s cut off: its client has taken nothing for %.0f s", path, now - self._taken_at)
                self.transport.abort()
        elif self._task is None and not self._close_at and now - self.quiet_since > keep_alive_s:
            self.transport.close()

    def shut(self) -> None:
        """The server ends: now if idle, after the running answer otherwise."""
        if self._task is None and self.transport is not None:
            self.transport.close()
        elif self._request is not None:
            self._request.keep_alive = False

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.abort()

    # --- for requests and answers --------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        self._answering = True
        self._written += len(data)
        transport.write(data)

    def waiting_bytes(self) -> int:
        """Written, and not yet with the client: here, and in the kernel, which alone tells a slow reader from none."""
        if self.transport is None:
            return 0
        try:
            peer: socket.socket = self.transport.get_extra_info("socket")
            (unsent,) = struct.unpack("i", fcntl.ioctl(peer.fileno(), termios.TIOCOUTQ, bytes(4)))
        except (OSError, ValueError):
            unsent = 0  # closed already
        return self.transport.get_write_buffer_size() + int(unsent)

    async def drain(self) -> None:
        """Bounded by :meth:`sweep`: a client that takes nothing is gone for us in the end."""
        while self.paused:
            if self.transport is None:
                raise ConnectionResetError("the client is gone")
            self._drained = self._loop.create_future()
            try:
                await self._drained
            finally:
                self._drained = None

    def send_continue(self) -> None:
        if self.transport is not None:
            self._written += len(_CONTINUE)
            self.transport.write(_CONTINUE)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def pause_reading(self) -> None:
        if self._reading and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()
