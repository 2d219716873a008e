"""Answers: whole ones in a single write, and streams."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from http import HTTPStatus

from gateway.http.peer import Peer
from gateway.http.request import Request

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS = frozenset((204, 304))


class _Date:
    """The Date header of this second."""

    second = 0
    line = b""

    @classmethod
    def now(cls) -> bytes:
        second = int(time.time())
        if second != cls.second:
            cls.second = second
            cls.line = b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return cls.line


def header_lines(headers: Mapping[str, str]) -> list[bytes]:
    """Raise ValueError for a line break or a zero byte inside a header."""
    lines = [f"{name}: {value}\r\n".encode("utf-8", "surrogateescape") for name, value in headers.items()]
    joined = b"".join(lines)
    if joined.count(b"\n") != len(lines) or joined.count(b"\r") != len(lines) or b"\0" in joined:
        raise ValueError("a line break or a zero byte inside a header")
    return lines


def _head(status: int, lines: Iterable[bytes], framing: bytes, *, keeps: bool) -> bytes:
    return b"HTTP/1.1 %d %b\r\n%b%b%b%b\r\n" % (
        status,
        _REASONS.get(status, b""),
        b"".join(lines),
        _Date.now(),
        framing,
        b"" if keeps else b"Connection: close\r\n",
    )


def _lines(answer: Answer) -> list[bytes]:
    lines = list(answer.lines or ())
    return lines + header_lines(answer.headers) if answer.headers else lines


class Response:
    """A whole answer. ``lines`` are header lines ready to be sent, beside or instead of ``headers``; Date, length and
    connection are added."""

    __slots__ = ("_closes", "body", "headers", "lines", "status")

    def __init__(
        self,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        lines: Iterable[bytes] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.lines = lines
        self._closes = False

    def force_close(self) -> None:
        """The connection ends with this answer."""
        self._closes = True

    async def finish(self, request: Request) -> None:
        """Send it. Raise ConnectionResetError when the client is gone."""
        connection = request.connection
        if self._closes:
            request.keep_alive = False
        lines = _lines(self)
        keeps = request.keep_alive
        if self.status in _BODILESS:
            connection.write(_head(self.status, lines, b"", keeps=keeps))
        else:
            length = b"Content-Length: %d\r\n" % len(self.body)
            if request.http_1_0 and keeps:
                length += b"Connection: keep-alive\r\n"
            head = _head(self.status, lines, length, keeps=keeps)
            connection.write(head if request.method == "HEAD" else head + self.body)
        if connection.paused:
            await connection.drain()


class StreamResponse:
    """A stream: :meth:`prepare` sends the head, then :meth:`write`, then :meth:`finish`.

    Of a ``length`` that is known it is sent as it is; otherwise in chunks, or to HTTP/1.0 until the connection's end.
    """

    __slots__ = ("_chunked", "_connection", "_ended", "_length", "_mute", "headers", "lines", "status")

    def __init__(
        self,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        lines: Iterable[bytes] | None = None,
        length: int | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        self.lines = lines
        self._length = length
        self._connection: Peer | None = None
        self._chunked = False
        self._mute = False
        self._ended = False

    @property
    def prepared(self) -> bool:
        return self._connection is not None

    async def prepare(self, request: Request) -> None:
        """Raise ConnectionResetError when the client is gone."""
        framing = b""
        if self.status in _BODILESS:
            self._mute = True
        elif self._length is not None:
            framing = b"Content-Length: %d\r\n" % self._length
        elif request.http_1_0:
            request.keep_alive = False
        else:
            self._chunked = True
            framing = b"Transfer-Encoding: chunked\r\n"
        if request.method == "HEAD":
            self._mute = True
        connection = self._connection = request.connection
        connection.write(_head(self.status, _lines(self), framing, keeps=request.keep_alive))
        if connection.paused:
            await connection.drain()

    async def write(self, data: bytes) -> None:
        """Waits while the client reads too slowly. Raise ConnectionResetError when it is gone."""
        connection = self._connection
        if connection is None or self._ended:
            raise RuntimeError("not prepared, or ended already")
        if data and not self._mute:
            connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if connection.paused:
            await connection.drain()

    async def write_eof(self) -> None:
        connection = self._connection
        if connection is None or self._ended:
            return
        self._ended = True
        if self._chunked and not self._mute:
            connection.write(b"0\r\n\r\n")
        if connection.paused:
            await connection.drain()

    async def finish(self, request: Request) -> None:
        if self._connection is None:
            await self.prepare(request)
        await self.write_eof()


Answer = Response | StreamResponse
