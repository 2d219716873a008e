"""``/v1/files``: what batches read and write. Nothing else is kept here."""

from __future__ import annotations

from typing import Any, Literal

from fleet import Files
from gateway.holding import Holding
from gateway.http import Answer, Request, StreamResponse
from gateway.intake import read_body
from gateway.keys import Keyring
from gateway.openai.answers import json_answer, only, page_limit
from gateway.openai.form import read_form
from rewarm.errors import BodyTooLarge, FileInUse, FileTooLarge, InvalidRequest, NotFound, StoredFileNotFound
from rewarm.files import StoredFile
from rewarm.ids import job_id
from rewarm.units import format_bytes

_FORM_BYTES = 64 * 2**10
"""What the form may add to its file."""


class FilePages:
    def __init__(self, files: Files, keys: Keyring, holding: Holding) -> None:
        self._files = files
        self._keys = keys
        self._holding = holding

    async def create(self, request: Request, rest: str) -> Answer:
        caller = self._keys.identify(request.headers)
        caller.enter()
        try:
            limit = self._files.limits.max_file
            size = min(request.content_length or limit, limit)
            self._holding.read(size)
            try:
                return json_answer(await self._create(request, caller.tenant, limit))
            finally:
                self._holding.forget(size)
        finally:
            caller.leave()

    async def _create(self, request: Request, tenant: str, limit: int) -> dict[str, Any]:
        try:
            body = await read_body(request, limit + _FORM_BYTES)
        except BodyTooLarge as error:
            raise FileTooLarge(f"a file may have {format_bytes(limit)} at most") from error
        form = read_form(request.headers.get("Content-Type", ""), body)
        purpose = form.fields.get("purpose")
        if purpose != "batch":
            said = "is missing" if purpose is None else f"{purpose!r} is not served here"
            raise InvalidRequest(f"`purpose` {said}: files are kept for `batch` only", param="purpose")
        if form.data is None:
            raise InvalidRequest("`file` is missing from the form", param="file")
        file = StoredFile(
            id="file-" + job_id().partition("_")[2],
            tenant=tenant,
            filename=form.filename,
            purpose="batch",
            bytes=len(form.data),
            created_ms=0,
            expires_ms=0,
        )
        return file_object(await self._files.put(file, form.data))

    async def list(self, request: Request, rest: str) -> Answer:
        caller = self._keys.identify(request.headers)
        query = request.query
        limit = page_limit(query.get("limit"), default=1000, most=10_000)
        order: Literal["asc", "desc"] = "asc" if query.get("order") == "asc" else "desc"
        purpose = query.get("purpose")
        after = query.get("after") or None
        found = await self._files.page(caller.tenant, after=after, limit=limit + 1, newest_first=order == "desc")
        if after is not None and not found:
            await self._get(after, caller.tenant, param="after")
        data = [file_object(file) for file in found[:limit] if purpose in (None, file.purpose)]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return json_answer({"object": "list", "data": data, **ends, "has_more": len(found) > limit})

    async def one(self, request: Request, rest: str) -> Answer:
        """``<id>`` or ``<id>/content``."""
        caller = self._keys.identify(request.headers)
        id_, _, what = rest.partition("/")
        if what == "":
            only(request, "GET", "DELETE")
            if request.method == "DELETE":
                return await self._delete(id_, caller.tenant)
            return json_answer(file_object(await self._get(id_, caller.tenant)))
        if what == "content":
            only(request, "GET")
            return await self._content(request, await self._get(id_, caller.tenant))
        raise NotFound(f"there is nothing at /v1/files/{rest}")

    async def _get(self, id_: str, tenant: str, *, param: str | None = None) -> StoredFile:
        file = await self._files.get(id_, tenant)
        if file is None:
            raise StoredFileNotFound(f"there is no file {id_!r}", param=param)
        return file

    async def _delete(self, id_: str, tenant: str) -> Answer:
        outcome = await self._files.delete(id_, tenant)
        if outcome == "unknown":
            raise StoredFileNotFound(f"there is no file {id_!r}")
        if outcome == "in_use":
            raise FileInUse(f"a batch that has not ended reads {id_}")
        return json_answer({"id": id_, "object": "file", "deleted": True})

    async def _content(self, request: Request, file: StoredFile) -> Answer:
        """In pieces, as Redis gives them. A file that goes meanwhile ends the connection: half is not the whole."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": _disposition(file.filename),
            "Cache-Control": "no-store",
            "Server": "rewarm",
        }
        response = StreamResponse(status=200, headers=headers, length=file.bytes)
        await response.prepare(request)
        sent = 0
        async for piece in self._files.read(file):
            await response.write(piece)
            sent += len(piece)
        if sent < file.bytes:
            request.abort()
            raise ConnectionAbortedError("the file went while it was read")
        await response.write_eof()
        return response


def _disposition(filename: str) -> str:
    return f'attachment; filename="{filename.encode("ascii", "replace").decode()}"'


def file_object(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_ms // 1000,
        "expires_at": file.expires_ms // 1000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
