"""Files that clients leave for a while: the input of a batch, and what came of it.

A file is whole or not to be seen. Its room is taken first (bounded by tenant and in all), its bytes follow in pieces
that may be repeated, and a commit shows it; what is never committed goes after ten minutes. The sweep removes what is
past its time and gives the bytes back; the keys' own TTL, a day later, is for a fleet that does not run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from fleet._errors import RedisFull
from fleet.client import FleetClient
from rewarm.errors import FilesFull, FileTooLarge
from rewarm.files import StoredFile
from rewarm.messages import decode, encode
from rewarm.units import format_bytes

PIECE_BYTES = 1 << 20
"""A script or a reply holds Redis up for about a millisecond for so much."""

COMMIT_WITHIN_MS = 10 * 60 * 1000


@dataclass(frozen=True, slots=True)
class FileLimits:
    max_file: int = 16 << 20
    max_bytes_tenant: int = 256 << 20  # input and output files together; output may go to twice as much
    max_bytes_total: int = 1 << 30
    retention_s: int = 30 * 86400  # of an uploaded file after its upload, of an output file after the batch's end


class Files:
    """Every method may be repeated. Raises :class:`QueueUnavailable` where Redis is out of reach."""

    def __init__(self, client: FleetClient, limits: FileLimits | None = None) -> None:
        self._client = client
        self._keys = client.keys
        self.limits = limits or FileLimits()

    async def put(self, file: StoredFile, data: bytes) -> StoredFile:
        """Keep a file; return it with the time until which it is kept.

        Raise :class:`FileTooLarge`, or :class:`FilesFull` where a bound or Redis's memory is reached; nothing is kept
        then.
        """
        limits, keys = self.limits, self._keys
        if len(data) > limits.max_file:
            raise FileTooLarge(f"the file has {len(data)} bytes, and at most {format_bytes(limits.max_file)} are kept")
        life_ms = limits.retention_s * 1000
        now = await self._client.time_ms()
        file = StoredFile(
            id=file.id,
            tenant=file.tenant,
            filename=file.filename,
            purpose=file.purpose,
            bytes=len(data),
            created_ms=now,
            expires_ms=now + life_ms,
        )
        try:
            await self._begin(file)
            for offset in range(0, len(data), PIECE_BYTES):
                piece = data[offset : offset + PIECE_BYTES]
                names = [keys.file(file.id), keys.file_data(file.id)]
                await self._client.scripts.run("file_piece", names, [offset, piece])
            names = [keys.file(file.id), keys.file_data(file.id), keys.files(file.tenant), keys.file_ends]
            await self._client.scripts.run("file_commit", names, [file.id, file.created_ms, life_ms])
        except RedisFull as error:
            await self._delete(file.id, file.tenant, overdue=False)
            raise FilesFull("Redis is out of memory: no more files can be kept") from error
        return file

    async def _begin(self, file: StoredFile) -> None:
        limits, keys = self.limits, self._keys
        names = [keys.file(file.id), keys.file_accounts, keys.file_ends]
        outcome, used = await self._client.scripts.run(
            "file_begin",
            names,
            [
                file.id,
                file.tenant,
                encode(file),
                file.bytes,
                COMMIT_WITHIN_MS,
                limits.max_bytes_tenant,
                limits.max_bytes_total,
            ],
        )
        if outcome == b"TENANT":
            most = format_bytes(limits.max_bytes_tenant)
            raise FilesFull(f"{file.bytes} bytes more do not fit: {used} of at most {most} are in use; delete files")
        if outcome == b"ALL":
            raise FilesFull(f"{file.bytes} bytes more do not fit: the store for files of all tenants is full")

    async def get(self, id_: str, tenant: str) -> StoredFile | None:
        """None also for another tenant's file, and for one whose time is over."""
        return (await self._read([id_], tenant))[0]

    async def page(
        self, tenant: str, *, after: str | None = None, limit: int = 100, newest_first: bool = True
    ) -> list[StoredFile]:
        """By the time they came; those after the file ``after`` in that order."""
        names = await listed(self._client, self._keys.files(tenant), after, limit, newest_first=newest_first)
        return [file for file in await self._read(names, tenant) if file is not None]

    async def read(self, file: StoredFile, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from ``start`` to before ``end``, in pieces; fewer where the file goes meanwhile."""
        end = file.bytes if end is None else min(end, file.bytes)
        while start < end:
            last = min(start + PIECE_BYTES, end) - 1
            piece: bytes = await self._client.call("GETRANGE", self._keys.file_data(file.id), start, last)
            if not piece:
                return
            yield piece
            start += len(piece)

    async def delete(self, id_: str, tenant: str) -> Literal["deleted", "in_use", "unknown"]:
        """ "in_use": a batch that has not ended reads it."""
        if await self.get(id_, tenant) is None:
            return "unknown"
        outcome = await self._delete(id_, tenant, overdue=False)
        return "deleted" if outcome == 1 else "in_use" if outcome < 0 else "unknown"

    async def sweep(self, limit: int = 100) -> int:
        """Remove what is past its time, at most ``limit``; return how many. Any gateway may call it at any time."""
        now = await self._client.time_ms()
        due = await self._client.call("ZRANGEBYSCORE", self._keys.file_ends, "-inf", now, "LIMIT", 0, limit)
        ids = [id_.decode() for id_ in due]
        tenants = await self._client.pipeline([("HGET", self._keys.file(id_), "tenant") for id_ in ids])
        gone = 0
        for id_, tenant in zip(ids, tenants, strict=True):
            gone += await self._delete(id_, (tenant or b"").decode(), overdue=True)
        return gone

    async def _delete(self, id_: str, tenant: str, *, overdue: bool) -> int:
        keys = self._keys
        names = [keys.file(id_), keys.file_data(id_), keys.files(tenant), keys.file_accounts, keys.file_ends]
        return int(await self._client.scripts.run("file_delete", names, [id_, int(overdue)]))

    async def _read(self, ids: list[str], tenant: str) -> list[StoredFile | None]:
        now = await self._client.time_ms()
        fields = ("m", "tenant", "bytes", "created", "expires", "listed")
        rows = await self._client.pipeline([("HMGET", self._keys.file(id_), *fields) for id_ in ids])
        return [_file(row, tenant, now) for row in rows]


def _file(row: list[bytes | None], tenant: str, now: int) -> StoredFile | None:
    message, owner, size, created, expires, seen = row
    if message is None or owner != tenant.encode() or not seen or not size or not created or not expires:
        return None
    if int(float(expires)) <= now:
        return None
    file = decode(message, StoredFile)
    return StoredFile(
        id=file.id,
        tenant=tenant,
        filename=file.filename,
        purpose=file.purpose,
        bytes=int(float(size)),
        created_ms=int(float(created)),
        expires_ms=int(float(expires)),
    )


async def listed(
    client: FleetClient, key: str, after: str | None, limit: int, *, newest_first: bool = True
) -> list[str]:
    """A page of a ZSET of ids: those that follow ``after``, nothing where it is not in there."""
    start = 0
    if after is not None:
        rank = await client.call("ZREVRANK" if newest_first else "ZRANK", key, after)
        if rank is None:
            return []
        start = int(rank) + 1
    names = await client.call("ZREVRANGE" if newest_first else "ZRANGE", key, start, start + limit - 1)
    return [name.decode() for name in names]
