"""A small hub over HTTP: repositories with revisions, gated ones, ranges, and the ways that a download breaks.

Speaks as much of a Hugging Face hub's API as a download needs: what a repository holds, with sizes and digests, and its
files, large ones through a redirect to another address.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.snapshots.listening import listening

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 1024  # bytes from which on a file is stored apart, as with Git LFS


@dataclass
class Hub:
    files: dict[str, bytes]
    repo: str = "org/tiny"
    commit: str = COMMIT
    gated: bool = False
    token: str = "good"
    url: str = ""
    break_after: int | None = None  # cut the connection once, after so many bytes of a large file
    hang_after: int | None = None  # send no more of a large file after so many bytes, and keep the connection
    corrupt: bool = False
    sent_bytes: int = 0
    left: int = 0  # clients that left in the middle of a large file
    asked: list[str] = field(default_factory=list)

    async def about(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        refused = self._refused(request)
        if refused is not None and not self.gated:
            return refused
        if request.match_info["revision"] not in ("main", self.commit):
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        siblings = [_entry(name, data) for name, data in self.files.items()]
        return web.json_response({"id": self.repo, "sha": self.commit, "gated": self.gated, "siblings": siblings})

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        refused = self._refused(request)
        if refused is not None:
            return refused
        name = request.match_info["name"]
        data = self.files.get(name)
        if data is None or request.match_info["revision"] != self.commit:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        if len(data) >= LARGE:
            return web.Response(status=302, headers={"Location": f"{self.url}/elsewhere/{name}?signed=yes"})
        return web.Response(body=data)

    async def elsewhere(self, request: web.Request) -> web.StreamResponse:
        data = self.files[request.match_info["name"]]
        if self.corrupt:
            data = bytes(len(data))
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        start, stop = int(first), int(last) + 1
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}", "Content-Length": str(stop - start)}
        response = web.StreamResponse(status=206, headers=headers)
        await response.prepare(request)
        for at in range(start, stop, 65536):
            if self.break_after is not None and self.sent_bytes >= self.break_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if self.hang_after is not None and self.sent_bytes >= self.hang_after:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.left += 1
            piece = data[at : min(stop, at + 65536)]
            self.sent_bytes += len(piece)
            await response.write(piece)
        return response

    def _refused(self, request: web.Request) -> web.Response | None:
        if f"{request.match_info['org']}/{request.match_info['model']}" != self.repo:
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        if self.gated and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, headers={"X-Error-Code": "GatedRepo"})
        return None


def _entry(name: str, data: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    out: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob}
    if len(data) >= LARGE:
        out["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return out


@asynccontextmanager
async def serving(hub: Hub) -> AsyncIterator[Hub]:
    app = web.Application()
    app.router.add_get("/api/models/{org}/{model}/revision/{revision:.*}", hub.about)
    app.router.add_get("/elsewhere/{name:.*}", hub.elsewhere)
    app.router.add_get("/{org}/{model}/resolve/{revision}/{name:.*}", hub.resolve)
    async with listening(app, cancels=True) as hub.url:
        yield hub
