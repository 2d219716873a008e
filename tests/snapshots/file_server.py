"""A real HTTP server over a folder, that fails in the ways servers fail."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.snapshots.listening import listening


@dataclass
class FileServer:
    folder: Path
    ranges: bool = True
    etags: bool = True
    url: str = ""
    served_bytes: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)  # name, range
    break_after: int | None = None  # cut the connection once, after so many bytes of a body
    fail: list[int] = field(default_factory=list)  # statuses of the next answers
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: int = 0
    most_at_once: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        wanted = request.headers.get("Range", "")
        self.requests.append((name, wanted))
        self.asked.set()
        if self.fail:
            return web.Response(status=self.fail.pop(0), headers={"Retry-After": "0"})
        path = self.folder / name
        if not path.is_file():
            return web.Response(status=404)
        data = path.read_bytes()
        headers = {"ETag": f'"{hashlib.md5(data).hexdigest()}"'} if self.etags else {}  # noqa: S324 (no secret)
        status, size, start, stop = 200, len(data), 0, len(data)
        if self.ranges and wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1, size)
            if request.headers.get("If-Range", headers.get("ETag")) == headers.get("ETag"):
                status = 206
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
                if start >= size:
                    return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
            else:
                start, stop = 0, size
        return await self._send(request, status, headers, data[start:stop])

    async def _send(
        self, request: web.Request, status: int, headers: dict[str, str], body: bytes
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=headers | {"Content-Length": str(len(body))})
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await response.prepare(request)
            for at in range(0, len(body), 65536):
                if self.break_after is not None and at >= self.break_after:
                    self.break_after = None
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                piece = body[at : at + 65536]
                self.served_bytes += len(piece)
                await response.write(piece)
        except ConnectionResetError:
            pass  # the client had enough
        finally:
            self.at_once -= 1
        return response


@asynccontextmanager
async def serving(folder: Path, **options: object) -> AsyncIterator[FileServer]:
    server = FileServer(folder, **options)  # type: ignore[arg-type]
    app = web.Application()
    app.router.add_get("/{name:.*}", server.handle)
    async with listening(app) as server.url:
        yield server
