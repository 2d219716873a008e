"""Kept connections, by endpoint, and the request's first line."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from rewarm.upstream.connection import Connection
from rewarm.upstream.errors import UpstreamUnreachable, UpstreamUntrusted
from rewarm.upstream.limits import STALE_WITHIN_S
from rewarm.upstream.response import UpstreamResponse

_BODILESS = frozenset(("GET", "HEAD", "DELETE", "OPTIONS"))


class Endpoint:
    """One engine's door and the idle connections to it, the last used on top."""

    __slots__ = (
        "_host",
        "_idle",
        "_max_idle",
        "_path",
        "_port",
        "_timeout_s",
        "_tls",
        "connecting",
        "host_line",
        "loop",
        "name",
        "open",
        "stale_within_s",
    )

    def __init__(
        self,
        name: str,
        connect_timeout_s: float,
        max_idle: int,
        tls: ssl.SSLContext | None = None,
        stale_within_s: float = STALE_WITHIN_S,
    ) -> None:
        self.name = name
        self.stale_within_s = stale_within_s
        self.open: set[Connection] = set()
        self.connecting = 0
        self._idle: list[Connection] = []
        self._timeout_s = connect_timeout_s
        self._max_idle = max_idle
        self.loop = asyncio.get_running_loop()
        kind, _, rest = name.partition(":")
        self._path: str | None = None
        self._host, self._port = "", 0
        self._tls: ssl.SSLContext | None = None
        if kind == "unix" and rest:
            self._path = rest
            self.host_line = "Host: localhost\r\n"
        elif (kind == "tcp" or (kind == "tls" and tls is not None)) and rest.rpartition(":")[2].isdigit():
            host, _, port = rest.rpartition(":")
            self._host, self._port = host.strip("[]"), int(port)
            self._tls = tls if kind == "tls" else None
            default = kind == "tls" and self._port == 443
            self.host_line = f"Host: {host if default else rest}\r\n"
        else:
            raise ValueError(f"{name!r} is no endpoint: unix:/path, tcp:host:port, or tls:host:port with a context")

    @property
    def is_local(self) -> bool:
        """A Unix socket."""
        return self._path is not None

    @property
    def idle(self) -> int:
        return len(self._idle)

    def kept(self) -> Connection | None:
        """The connection used last, if it still lives."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def connect(self) -> Connection:
        """Raise UpstreamUnreachable, within the timeout in any case."""
        self.connecting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._path is not None:
                    _, connection = await self.loop.create_unix_connection(lambda: Connection(self), self._path)
                else:
                    _, connection = await self.loop.create_connection(
                        lambda: Connection(self), self._host, self._port, ssl=self._tls
                    )
                    connection.send_at_once()
        except TimeoutError as error:
            raise UpstreamUnreachable(f"{self.name}: no connection within {self._timeout_s} s") from error
        except ssl.SSLCertVerificationError as error:
            raise UpstreamUntrusted(f"{self.name}: {error.verify_message or error}") from error
        except (OSError, ssl.CertificateError) as error:
            raise UpstreamUnreachable(f"{self.name}: {error}") from error
        finally:
            self.connecting -= 1
        if not connection.usable:
            raise UpstreamUnreachable(f"{self.name}: closed at once")
        self.open.add(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        if len(self._idle) >= self._max_idle:
            connection.drop()
            return
        connection.idle_since = self.loop.time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def expire(self, before: float) -> None:
        """Close what has been idle since before that loop time; the oldest lie at the bottom."""
        while self._idle and self._idle[0].idle_since < before:
            self._idle.pop(0).drop()


class UpstreamPool:
    """All connections of a process to engines. Not bound to a number: the gates bound what runs.

    ``tls`` is what ``tls:`` endpoints are verified by. A request whose kept connection ends without an answer is sent
    again if that happens within ``stale_within_s``, and has met a dead engine otherwise.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 2.0,
        idle_s: float = 30.0,
        max_idle_per_endpoint: int = 64,
        stale_within_s: float = STALE_WITHIN_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._idle_s = idle_s
        self._max_idle = max_idle_per_endpoint
        self._stale_within_s = stale_within_s
        self._endpoints: dict[str, Endpoint] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(
        self, endpoint: str, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> UpstreamResponse:
        """Send the request and return at once; :meth:`UpstreamResponse.ready` waits for the head.

        ``Host`` and ``Content-Length`` are ours; the caller gives neither, nor hop-by-hop headers.
        Raise UpstreamUnreachable, or ValueError for a line break inside the target or a header.
        """
        place = self._endpoints.get(endpoint) or self._add(endpoint)
        lines = [f"{method} {target} HTTP/1.1\r\n{place.host_line}".encode("latin-1")]
        if body or method not in _BODILESS:
            lines.append(b"Content-Length: %d\r\n" % len(body))
        lines += [b"%b: %b\r\n" % header for header in headers]
        lines.append(b"\r\n")
        head = b"".join(lines)
        expected = len(lines) + 1  # the first element holds two lines
        if head.count(b"\n") != expected or head.count(b"\r") != expected or b"\0" in head:
            raise ValueError("a line break or a zero byte inside the target or a header")
        response = UpstreamResponse(place, head, body, method == "HEAD")
        response.attach(place.kept() or await place.connect())
        return response

    async def request(
        self, endpoint: str, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> UpstreamResponse:
        """Send the request and wait for the head. Raise UpstreamUnreachable, UpstreamDied, UpstreamProtocolError."""
        response = await self.open(endpoint, method, target, headers, body)
        try:
            while not await response.ready():
                pass
        except BaseException:
            response.abort()
            raise
        return response

    async def close(self) -> None:
        """Close every connection, also those in use."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for place in self._endpoints.values():
            for connection in list(place.open):
                if connection.transport is not None:
                    connection.transport.abort()
        self._endpoints.clear()
        await asyncio.sleep(0)  # let the transports report the end

    def _add(self, endpoint: str) -> Endpoint:
        if self._closed:
            raise UpstreamUnreachable("the pool is closed")
        place = self._endpoints[endpoint] = Endpoint(
            endpoint, self._connect_timeout_s, self._max_idle, self._tls, self._stale_within_s
        )
        if self._sweep is None:
            self._arm()
        return place

    def _arm(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(self._idle_s / 2, self._expire)

    def _expire(self) -> None:
        before = asyncio.get_running_loop().time() - self._idle_s
        for name, place in list(self._endpoints.items()):
            place.expire(before)
            if not place.open and not place.connecting:
                del self._endpoints[name]  # replicas come and go; their doors must not pile up
        if self._endpoints:
            self._arm()
        else:
            self._sweep = None
