"""One connection to an engine: bytes in, events of the HTTP parser, one response at a time."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

import httptools

from rewarm.upstream.errors import StaleConnection, UpstreamDied, UpstreamProtocolError, UpstreamUnread
from rewarm.upstream.limits import MAX_HEAD_BYTES, MAX_HEADERS, WHOLE_BODY_BYTES, WRITE_SLICE_BYTES

if TYPE_CHECKING:
    from rewarm.upstream.pool import Endpoint
    from rewarm.upstream.response import UpstreamResponse


class Connection(asyncio.Protocol):
    __slots__ = (
        "_body",
        "_chunked",
        "_content_length",
        "_endpoint",
        "_extra",
        "_fed",
        "_finished",
        "_interim",
        "_keep",
        "_offset",
        "_parser",
        "_paused",
        "_reading",
        "_response",
        "_sent_at",
        "_served",
        "idle_since",
        "transport",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self._endpoint = endpoint
        self._response: UpstreamResponse | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sent_at = 0.0
        self._served = 0
        self._paused = False
        self._reading = True
        self._reset(b"")

    def _reset(self, body: bytes) -> None:
        self._body = body
        self._offset = len(body)
        self._fed = 0
        self._finished = False
        self._keep = False
        self._extra = False
        self._interim = False
        self._chunked = False
        self._content_length: int | None = None

    # --- the pool's and the response's side ----------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def send_at_once(self) -> None:
        """TCP only: a small request must not wait for the acknowledgement of the last one."""
        if self.transport is not None:
            peer: socket.socket = self.transport.get_extra_info("socket")
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self, response: UpstreamResponse, head: bytes, body: bytes) -> None:
        """Send the request. A small body goes out with the head in one write, a large one in slices."""
        transport = self.transport
        if transport is None or self._response is not None:
            raise RuntimeError("the connection is closed or in use")
        self._reset(body)
        self._response = response
        if self._served:
            self._sent_at = self._endpoint.loop.time()
        self._parser = httptools.HttpResponseParser(self)
        if len(body) <= WRITE_SLICE_BYTES:
            transport.write(head + body if body else head)
        else:
            self._offset = 0
            transport.write(head)
            self._push()

    def drop(self) -> None:
        """Close at once, whatever is under way."""
        self._response = None
        if self.transport is not None:
            self.transport.abort()

    def resume_reading(self) -> None:
        if not self._reading and self.transport is not None:
            self._reading = True
            self.transport.resume_reading()

    def _push(self) -> None:
        """Write the body's next slices until the transport has enough. An answer that is complete ends the sending."""
        transport, size = self.transport, len(self._body)
        view = memoryview(self._body)
        while self._offset < size and not self._paused and self._response is not None:
            if transport is None or transport.is_closing():
                return
            piece = view[self._offset : self._offset + WRITE_SLICE_BYTES]
            self._offset += len(piece)
            transport.write(piece)

    # --- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        response, parser = self._response, self._parser
        if response is None or parser is None:
            # An idle engine has nothing to say: whatever this is, it must not be taken for the next answer.
            self._close()
            return
        response.received = True
        if not response.head_seen:
            self._fed += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._fail(cause if isinstance(cause, UpstreamProtocolError) else UpstreamProtocolError(repr(cause)))
            return
        except httptools.HttpParserUpgrade:
            self._fail(UpstreamProtocolError("the engine switched protocols"))
            return
        except httptools.HttpParserError as error:
            if not self._finished:
                self._fail(UpstreamProtocolError(f"not an HTTP response: {error}"))
                return
            self._extra = True
        if not response.head_seen and self._fed > MAX_HEAD_BYTES:
            self._fail(UpstreamProtocolError(f"the response's head exceeds {MAX_HEAD_BYTES} bytes"))
        elif self._finished:
            self._release(response)
        else:
            response.wake_if_due()

    def eof_received(self) -> bool | None:
        return None  # close our side as well: an engine that half-closes has ended

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._push()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._endpoint.forget(self)
        response, self._response = self._response, None
        if response is None:
            return
        if response.head_seen and exc is None and self._ends_with_connection():
            response.complete = True
            response.detach()
            response.wake()
            return
        reason = f": {exc}" if exc else ""
        if not response.received and self._unread(exc):
            message = f"{self._endpoint.name} ended before it had read the request{reason}"
            response.fail(UpstreamUnread(message, kept=self._served > 0))
        elif not response.received and self._stale():
            response.fail(StaleConnection(f"the kept connection to {self._endpoint.name} closed{reason}"))
        elif response.head_seen:
            response.fail(UpstreamDied(f"{self._endpoint.name} ended within its answer{reason}"))
        else:
            response.fail(UpstreamDied(f"{self._endpoint.name} ended before it answered{reason}"))

    def _unread(self, exc: Exception | None) -> bool:
        """Linux ends a local connection with an error instead of an end of file where its peer has left bytes unread
        (a network's may be reset for many a reason). A large body may also be cut off by an answer."""
        ended = isinstance(exc, ConnectionResetError | BrokenPipeError)
        return ended and self._endpoint.is_local and len(self._body) <= WRITE_SLICE_BYTES

    def _stale(self) -> bool:
        """Its end was closed already when we sent the request, most likely: an engine takes longer to die of one."""
        return self._served > 0 and self._endpoint.loop.time() - self._sent_at < self._endpoint.stale_within_s

    def _ends_with_connection(self) -> bool:
        """Neither length nor chunks were announced: the end of the connection is the end of the body."""
        return not self._chunked and self._content_length is None

    def _fail(self, error: UpstreamProtocolError) -> None:
        response, self._response = self._response, None
        self._close()
        if response is not None:
            response.fail(error)

    def _close(self) -> None:
        self._endpoint.forget(self)
        if self.transport is not None:
            self.transport.abort()

    def _release(self, response: UpstreamResponse) -> None:
        """The response is whole: keep the connection if both sides may, and let the caller have it."""
        self._response = self._parser = None
        response.complete = True
        response.detach()
        transport = self.transport
        if (
            self._keep
            and not self._extra
            and self._offset >= len(self._body)
            and transport is not None
            and not transport.is_closing()
            and transport.get_write_buffer_size() == 0
        ):
            self.resume_reading()
            self._body = b""
            self._served += 1
            self._endpoint.keep(self)
        elif transport is not None:
            transport.abort()
        response.wake()

    # --- httptools' callbacks ------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._finished:
            self._extra = True

    def on_status(self, status: bytes) -> None:
        if self._response is not None and not self._finished:
            self._response.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is None or self._finished:
            return
        if response.head_seen:
            return  # a trailer of a chunked body: nobody downstream could use it
        response.headers.append((name, value))
        if len(response.headers) > MAX_HEADERS:
            raise UpstreamProtocolError(f"the response has more than {MAX_HEADERS} headers")
        size = len(name)
        if size == 14 and name.lower() == b"content-length":
            self._content_length = int(value)
        elif size == 17 and name.lower() == b"transfer-encoding":
            self._chunked = value.lower().rstrip().endswith(b"chunked")

    def on_headers_complete(self) -> None:
        response, parser = self._response, self._parser
        if response is None or parser is None or self._finished:
            return
        status = parser.get_status_code()
        if status < 200:
            if status == 101:
                raise UpstreamProtocolError("the engine switched protocols")
            self._interim = True  # 100 or 103: the real answer follows
            response.headers.clear()
            response.reason = b""
            self._content_length, self._chunked = None, False
            return
        response.status = status
        response.head_seen = True
        if response.is_head or status in (204, 304):
            # The parser cannot know that the request was HEAD, and would wait for the announced body.
            self._keep = parser.should_keep_alive()
            self._finished = True
        elif self._content_length is not None:
            response.whole = self._content_length <= WHOLE_BODY_BYTES

    def on_body(self, data: bytes) -> None:
        response = self._response
        if response is None:
            return
        if self._finished:
            self._extra = True
        elif not response.feed(data) and self._reading and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self._finished:
            self._finished = True
            # Asked any later, the parser says False, and everybody would reconnect.
            self._keep = self._parser is not None and self._parser.should_keep_alive()
