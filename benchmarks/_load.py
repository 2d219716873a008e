"""Load on 127.0.0.1, and what it measured: wrk for throughput, one connection for latency, paced streams for SSE."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks._stats import quantile

PATH = "/v1/chat/completions"
_MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant who answers in one short line."},
    {"role": "user", "content": "Say hello to the world in English please, in your own words and all in one line."},
]


def body_of(model: str, *, stream: bool = False, max_tokens: int = 100) -> bytes:
    """A chat request of about 250 bytes."""
    body = {"model": model, "messages": _MESSAGES, "max_tokens": max_tokens}
    return json.dumps({**body, "stream": True} if stream else body, separators=(",", ":")).encode()


def request_of(body: bytes, key: str) -> bytes:
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


# --- throughput ------------------------------------------------------------------------------------------------------

_LUA = """wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {key}"
wrk.body = [[{body}]]
done = function(s, l, r)
  local e = s.errors
  local broken = e.connect + e.read + e.write + e.timeout
  io.write(string.format("RES %d %d %d %d\\n", s.requests, s.duration, e.status, broken))
end
"""


@dataclass(frozen=True)
class Throughput:
    requests: int
    seconds: float
    bad: int  # other statuses than 2xx and 3xx, and broken connections


async def wrk(folder: Path, port: int, body: bytes, key: str, seconds: int, connections: int) -> Throughput:
    """One thread of wrk at the lowest priority: the proxy must not starve for it."""
    script = folder / "request.lua"
    script.write_text(_LUA.format(key=key, body=body.decode()))
    command = ["nice", "-n", "19", "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s"]
    process = await asyncio.create_subprocess_exec(
        *command, "-s", str(script), f"http://127.0.0.1:{port}{PATH}", stdout=asyncio.subprocess.PIPE
    )
    out = (await process.communicate())[0].decode()
    found = re.search(r"RES (\d+) (\d+) (\d+) (\d+)", out)
    if found is None:
        raise RuntimeError(f"wrk said:\n{out}")
    requests, duration_us, status, broken = (int(part) for part in found.groups())
    return Throughput(requests, duration_us / 1e6, status + broken)


# --- latency ---------------------------------------------------------------------------------------------------------


class Connection:
    """One kept-alive connection; :meth:`ask` blocks, as nothing else should run meanwhile."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> float:
        """Seconds from the first byte out to the last byte in. Answers have a Content-Length or are chunked."""
        start = time.perf_counter()
        self._socket.sendall(request)
        data = b""
        while not _complete(data):
            piece = self._socket.recv(65536)
            if not piece:
                raise ConnectionError(f"closed after {data!r}")
            data += piece
        seconds = time.perf_counter() - start
        if not data.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not 200: {data[:400]!r}")
        return seconds

    def close(self) -> None:
        self._socket.close()


def _complete(data: bytes) -> bool:
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        return False
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")


def alternate(
    direct: int, proxied: int, direct_request: bytes, proxied_request: bytes, count: int
) -> list[list[float]]:
    """[direct seconds, proxied seconds], one request after the other, alternating: noise meets both alike."""
    one, other = Connection(direct), Connection(proxied)
    times: list[list[float]] = [[], []]
    try:
        for index in range(count + 20):
            a, b = one.ask(direct_request), other.ask(proxied_request)
            if index >= 20:  # the first ones open connections and caches
                times[0].append(a)
                times[1].append(b)
    finally:
        one.close()
        other.close()
    return times


# --- streams ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Streams:
    events: int
    gap_p99_ms: float  # between two arrivals on one stream
    whole: int  # streams that ended with [DONE]


class _Reader(asyncio.Protocol):
    """Counts events in passing: the reader must cost less than the proxy."""

    def __init__(self, request: bytes, done: Callable[[], None]) -> None:
        self._request = request
        self._done = done
        self._tail = b""
        self.events = 0
        self.gaps: list[float] = []
        self.whole = False
        self._last = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._last:
            self.gaps.append(now - self._last)
        self._last = now
        self.events += data.count(b"data: {")
        self._tail = (self._tail + data)[-64:]
        if b"data: [DONE]" in self._tail:
            self.whole = True
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()


async def streams(port: int, body: bytes, key: str, count: int, within_s: float = 120.0) -> Streams:
    """``count`` streams at once, each read to its end."""
    loop = asyncio.get_running_loop()
    left = asyncio.Semaphore(0)
    readers = []
    request = request_of(body, key)
    for _ in range(count):
        reader = _Reader(request, left.release)
        readers.append(reader)
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)  # type: ignore[misc]
    async with asyncio.timeout(within_s):
        for _ in range(count):
            await left.acquire()
    gaps = [gap for reader in readers for gap in reader.gaps]
    return Streams(
        sum(reader.events for reader in readers), quantile(gaps, 0.99) * 1000, sum(reader.whole for reader in readers)
    )
