"""A very cheap OpenAI-shaped server for benchmarks: one raw asyncio.Protocol over httptools, canned answers.

    python tests/programs/fast_engine.py --port 9100 --unix /tmp/fast.sock --paced-ms 20

A request with ``"stream": true`` gets ``max_tokens`` events (default ``--events``), one each ``--paced-ms``, all
streams on one clock tick so that the server costs little; everything else that is POSTed gets a 250-byte JSON answer;
a GET gets 200. It must cost far less CPU than whatever proxy stands before it, and must not be the one that adds delay.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import cast

import httptools
import uvloop

_STREAM = re.compile(rb'"stream"\s*:\s*true')
_EVENTS = re.compile(rb'"max_tokens"\s*:\s*(\d+)')


def _answer() -> bytes:
    body = json.dumps(
        {
            "id": "chatcmpl-fast",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "fast",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello, world!"},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 24, "completion_tokens": 4, "total_tokens": 28},
        },
        separators=(",", ":"),
    ).encode()
    body += b" " * (250 - len(body))
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    chunk = {
        "id": "chatcmpl-fast",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "fast",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


ANSWER = _answer()
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = HEAD + _framed(_event({"role": "assistant", "content": ""}))
# More than one: some proxies take a repeated chunk for a model gone astray.
TOKENS = [_framed(_event({"content": f"word{i:x} "})) for i in range(16)]
LAST = _framed(_event({}, "stop")) + _framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Clock:
    """Sends one token to every running stream each tick."""

    def __init__(self, paced_ms: float) -> None:
        self.interval_s = paced_ms / 1000
        self.streams: dict[Connection, int] = {}
        self._running = False

    def add(self, connection: Connection, events: int) -> None:
        connection.transport.write(FIRST)
        self.streams[connection] = events
        if not self._running:
            self._running = True
            loop = asyncio.get_running_loop()
            loop.call_at(loop.time() + self.interval_s, self._tick, loop.time() + self.interval_s)

    def _tick(self, due: float) -> None:
        for connection, left in list(self.streams.items()):
            if left > 0:
                connection.transport.write(TOKENS[left % 16])
                self.streams[connection] = left - 1
            else:
                del self.streams[connection]
                connection.transport.write(LAST)
        self._running = bool(self.streams)
        if self._running:
            asyncio.get_running_loop().call_at(due + self.interval_s, self._tick, due + self.interval_s)


class Connection(asyncio.Protocol):
    def __init__(self, clock: Clock, events: int) -> None:
        self._clock = clock
        self._events = events
        self._body = b""
        self._parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such

    def connection_lost(self, exc: Exception | None) -> None:
        self._clock.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if not self._body:
            self.transport.write(OK)
        elif _STREAM.search(self._body):
            wanted = _EVENTS.search(self._body)
            self._clock.add(self, int(wanted[1]) if wanted else self._events)
        else:
            self.transport.write(ANSWER)


async def serve(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    clock = Clock(args.paced_ms)

    def connection() -> Connection:
        return Connection(clock, args.events)

    servers = [await loop.create_server(connection, args.host, args.port, backlog=4096)]
    if args.unix:
        servers.append(await loop.create_unix_server(connection, args.unix, backlog=4096))
    print(f"fast engine: listening on {args.host}:{args.port}", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--unix", metavar="PATH", help="listen on this unix socket too")
    parser.add_argument("--paced-ms", type=float, default=20.0, help="between the events of a stream")
    parser.add_argument("--events", type=int, default=100, help="of a stream that names no max_tokens")
    uvloop.run(serve(parser.parse_args()))
