"""A client that says exactly what a test wants said, and a server with a handler that tells what it was given."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from gateway.http import Handler, Request, Response, Server
from gateway.server import explain


async def mirror(request: Request) -> Response:
    """What was understood of the request, as JSON."""
    body = await request.read(1 << 20)
    seen = {
        "method": request.method,
        "path": request.path,
        "query": request.query_string,
        "body": body.decode("latin-1"),
        "headers": {name.lower(): value for name, value in request.headers.items()},
    }
    return Response(headers={"Content-Type": "application/json"}, body=json.dumps(seen).encode())


@contextlib.asynccontextmanager
async def serving(
    handler: Handler = mirror, *, keep_alive_s: float = 75.0, write_stall_s: float = 60.0
) -> AsyncIterator[tuple[Server, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(handler, explain, keep_alive_s=keep_alive_s, write_stall_s=write_stall_s)
    await server.start(listener)
    try:
        yield server, listener.getsockname()[1]
    finally:
        await server.close(0.1)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers in lower case, body. Raise EOFError where the connection ended instead."""
        head = await self._head()
        status = int(head.split(b" ", 2)[1])
        headers = dict(line.decode().lower().split(": ", 1) for line in head.split(b"\r\n")[1:] if line)
        if "content-length" in headers:
            return status, headers, await self._within(self.reader.readexactly(int(headers["content-length"])))
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, await self._chunks()
        if status in (204, 304):
            return status, headers, b""
        return status, headers, await self.rest()

    async def _head(self) -> bytes:
        try:
            return await self._within(self.reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError as error:
            raise EOFError(error.partial) from error

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self._within(self.reader.readline()), 16):
            body += (await self._within(self.reader.readexactly(size + 2)))[:-2]
        await self._within(self.reader.readline())
        return body

    async def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        return await self._within(self.reader.read())

    async def _within(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        async with asyncio.timeout(10):
            return await reading

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def client(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def get(path: bytes = b"/", more: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"GET %b HTTP/%b\r\nHost: x\r\n%b\r\n" % (path, version, more)


def post(body: bytes, path: bytes = b"/", more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n%b" % (path, len(body), more, body)
