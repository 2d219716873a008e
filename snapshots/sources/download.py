"""Files from a source into a folder: several chunks at once, each verified and noted, resumed where it was left."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from snapshots.digests import chunk_digest
from snapshots.durable import full_disk_is_typed, reserve
from snapshots.errors import DigestMismatch, SourceUnavailable
from snapshots.linux import idle_io
from snapshots.progress import Meter, OnProgress, ignore
from snapshots.sources.base import Listing, RemoteFile, Source, Transient
from snapshots.sources.journal import Journal
from snapshots.throttle import Throttle

DOWNLOAD_CHUNK_BYTES = 8 * 2**20
"""Long enough that a request's round trip does not count, short enough that little is asked for twice."""

_T = TypeVar("_T")
_LONGEST_WAIT_S = 30.0

log = logging.getLogger("rewarm.snapshots.sources")


@dataclass(frozen=True, slots=True)
class DownloadOptions:
    """``low_priority``: disk work waits for everybody else's. ``retry_s``: before the second attempt; then
    doubling."""

    at_once: int = 4
    attempts: int = 6
    retry_s: float = 0.5
    low_priority: bool = False
    throttle: Throttle = field(default_factory=Throttle)
    report: OnProgress = ignore


@dataclass(slots=True)
class _Item:
    file: RemoteFile
    descriptor: int
    journal: Journal
    expected: list[bytes] | None
    missing: list[int]
    counted: set[int]


class Download:
    """Into ``folder``; journals lie in ``journals``, apart, so that the folder holds nothing but the files."""

    def __init__(
        self,
        source: Source,
        folder: Path,
        journals: Path,
        options: DownloadOptions,
        *,
        chunk_bytes: int = DOWNLOAD_CHUNK_BYTES,
        digests: Mapping[str, list[bytes]] | None = None,
    ) -> None:
        self._source, self._folder, self._journals = source, folder, journals
        self._options, self._chunk_bytes, self._digests = options, chunk_bytes, digests or {}
        start = idle_io if options.low_priority else _nothing
        self._pool = ThreadPoolExecutor(max(1, options.at_once), "rewarm-download", initializer=start)
        self._meter = Meter("downloading", 0, options.report)

    async def run(self, listing: Listing) -> None:
        """Return when every file is here, whole. Raise SourceUnavailable, SourceChanged, StoreFull, or DigestMismatch
        when a source keeps sending other bytes than its manifest says. What is here stays, for the next attempt."""
        self._meter = Meter("downloading", listing.total_bytes, self._options.report)
        with ExitStack() as stack:
            stack.callback(self._pool.shutdown, wait=True, cancel_futures=True)
            items = []
            for file in listing.files:
                items.append(await self._in_thread(partial(self._open, file)))
                stack.callback(os.close, items[-1].descriptor)
                stack.callback(items[-1].journal.close)
                for index in items[-1].counted:
                    self._meter.add(self._length(file, index), file.name)
            work: asyncio.Queue[tuple[_Item, int | None]] = asyncio.Queue()
            for item in items:
                if not item.missing:
                    continue
                chunks: list[int | None] = [*item.missing] if item.file.ranges else [None]
                for chunk in chunks:
                    work.put_nowait((item, chunk))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(self._options.at_once, work.qsize())):
                        group.create_task(self._worker(work))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None

    async def _worker(self, work: asyncio.Queue[tuple[_Item, int | None]]) -> None:
        while not work.empty():
            item, index = work.get_nowait()
            if index is None:
                await retrying(partial(self._whole, item), item.file.name, self._options)
            else:
                await retrying(partial(self._chunk, item, index), item.file.name, self._options)

    async def _chunk(self, item: _Item, index: int) -> None:
        start = index * self._chunk_bytes
        stop = start + self._length(item.file, index)
        data = bytearray()
        async for piece in self._source.read(item.file, start, stop):
            await self._options.throttle.wait_async(len(piece))
            data += piece
            if len(data) > stop - start:
                break
        if len(data) != stop - start:
            raise Transient(f"sent {len(data)} bytes where {stop - start} were asked for")
        await self._in_thread(partial(self._keep, item, index, data))

    async def _whole(self, item: _Item) -> None:
        """From a server that knows no ranges: from the start each time, and only what is missing is written."""
        data, index = bytearray(), 0
        async for piece in self._source.read(item.file, 0, item.file.size):
            await self._options.throttle.wait_async(len(piece))
            data += piece
            while index < item.journal.chunks and len(data) >= self._length(item.file, index):
                length = self._length(item.file, index)
                chunk = bytes(data[:length])
                await self._in_thread(partial(self._keep, item, index, chunk))
                del data[:length]
                index += 1
        if index < item.journal.chunks or data:
            raise Transient(f"ended after another number of bytes than the {item.file.size} that it said")

    def _keep(self, item: _Item, index: int, data: bytes | bytearray) -> None:
        digest = chunk_digest(data)
        offset = index * self._chunk_bytes
        if item.expected is not None and item.expected[index] != digest:
            raise _WrongBytes(DigestMismatch(Path(item.file.name), "the source sent other bytes", offset=offset))
        path = self._folder / item.file.name
        with full_disk_is_typed(path):
            view, at = memoryview(data), offset
            while len(view):
                written = os.pwrite(item.descriptor, view, at)
                view, at = view[written:], at + written
        if index not in item.counted:
            item.counted.add(index)
            item.journal.add(index, digest)
            self._meter.add(len(data), item.file.name)

    def _open(self, file: RemoteFile) -> _Item:
        path = self._folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with full_disk_is_typed(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            if os.fstat(descriptor).st_size != file.size:
                os.ftruncate(descriptor, 0)
                reserve(descriptor, file.size)
            journal = Journal(self._journals / f"{file.name}.journal", path, file.size, file.version, self._chunk_bytes)
            expected = self._digests.get(file.name)
            here = journal.open(expected)
        missing = [index for index in range(journal.chunks) if index not in here]
        return _Item(file, descriptor, journal, expected, missing, here)

    def _length(self, file: RemoteFile, index: int) -> int:
        return min(self._chunk_bytes, file.size - index * self._chunk_bytes)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


class _WrongBytes(Transient):
    """Perhaps only this time. What is raised when it stays so."""

    def __init__(self, final: DigestMismatch) -> None:
        super().__init__(str(final))
        self.final = final


async def retrying(work: Callable[[], Awaitable[_T]], name: str, options: DownloadOptions) -> _T:
    """Call ``work`` until it does not raise Transient; after the last attempt raise what stands for it."""
    for attempt in range(1, options.attempts + 1):
        try:
            return await work()
        except Transient as error:
            if attempt == options.attempts:
                if isinstance(error, _WrongBytes):
                    raise error.final from error
                raise SourceUnavailable(f"{name}: {error} ({attempt} attempts)") from error
            wait_s = min(_LONGEST_WAIT_S, options.retry_s * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
            wait_s = max(wait_s, min(_LONGEST_WAIT_S, error.after_s or 0.0))
            log.info("retry file=%s attempt=%d wait_s=%.1f error=%s", name, attempt, wait_s, error)
            await asyncio.sleep(wait_s)
    raise AssertionError("unreachable")


def _nothing() -> None:
    pass
