"""The threads that all reading shares: chunk by chunk, each checked before it counts, until the first error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from snapshots.digests import ChunkDigest, chunk_digest
from snapshots.errors import Cancelled, DigestMismatch
from snapshots.manifest import File, FileKind
from snapshots.progress import Meter, OnProgress, ignore
from snapshots.restore.destination import Destination
from snapshots.restore.paths import ReadPath
from snapshots.throttle import Throttle

THREADS = 4
"""Enough to keep a disk's queue full; more bring nothing, measured."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """``path`` None: choose by what is true of each file. ``verify`` False trusts the disk."""

    threads: int = THREADS
    verify: bool = True
    path: ReadPath | None = None
    kinds: frozenset[FileKind] = frozenset((FileKind.WEIGHTS,))
    throttle: Throttle | None = None
    cancel: threading.Event | None = None
    report: OnProgress = ignore


@dataclass(frozen=True, slots=True)
class Chunk:
    file: int
    offset: int
    length: int
    digest: bytes


Seen = Callable[[memoryview], None]


class ReadableFile(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def where(self) -> Path:
        """For errors."""

    def read(self, view: memoryview, offset: int, seen: Seen) -> None:
        """Make the file's bytes from ``offset`` be in ``view``, and pass them to ``seen``, in order, as they come."""


def run_chunks(
    files: Sequence[ReadableFile], wanted: Sequence[File], chunk_bytes: int, to: Destination, options: RestoreOptions
) -> int:
    """Read all of ``wanted`` into ``to`` and return the bytes. All threads have ended when this returns or raises."""
    total = sum(file.size for file in wanted)
    run = _Run(files, chunks_of(wanted, chunk_bytes), to, options, Meter("reading", total, options.report))
    count = min(options.threads, max(1, -(-total // chunk_bytes)))
    threads = [threading.Thread(target=run.work, name=f"restore-{n}", daemon=True) for n in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # an interrupt from the keyboard
        run.stop(error)
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    run.finish()
    return total


def chunks_of(files: Sequence[File], chunk_bytes: int) -> Iterator[Chunk]:
    for number, file in enumerate(files):
        for index, digest in enumerate(file.digests()):
            offset = index * chunk_bytes
            yield Chunk(number, offset, min(chunk_bytes, file.size - offset), digest)


def check(chunk: Chunk, view: memoryview, where: Path) -> None:
    if chunk_digest(view) != chunk.digest:
        raise _wrong(where, chunk)


def _wrong(where: Path, chunk: Chunk) -> DigestMismatch:
    return DigestMismatch(where, "its bytes are not those that were captured", offset=chunk.offset)


def _unseen(piece: memoryview) -> None:
    """The disk is trusted."""


class _Run:
    """One restore: the chunks still to read, and the first error, shared by its threads."""

    def __init__(
        self,
        files: Sequence[ReadableFile],
        chunks: Iterator[Chunk],
        to: Destination,
        options: RestoreOptions,
        meter: Meter,
    ) -> None:
        self._files, self._chunks, self._to, self._options, self._meter = files, chunks, to, options, meter
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def work(self) -> None:
        try:
            while (chunk := self._next()) is not None:
                self._one(chunk)
        except BaseException as error:  # noqa: BLE001 (the thread that waits for all raises it)
            self.stop(error)

    def stop(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error

    def finish(self) -> None:
        if self._error is not None:
            raise self._error

    def _next(self) -> Chunk | None:
        cancel = self._options.cancel
        with self._lock:
            if self._error is not None:
                return None
            if cancel is not None and cancel.is_set():
                raise Cancelled("the restore was cancelled")
            return next(self._chunks, None)

    def _one(self, chunk: Chunk) -> None:
        options, file = self._options, self._files[chunk.file]
        if options.throttle is not None:
            options.throttle.wait(chunk.length, options.cancel)
        view = self._to.buffer(chunk.file, chunk.offset, chunk.length)
        try:
            if options.verify:
                found = ChunkDigest()
                file.read(view, chunk.offset, found.update)
                if found.digest() != chunk.digest:
                    raise _wrong(file.where, chunk)
            else:
                file.read(view, chunk.offset, _unseen)
        except BaseException:
            self._to.release(chunk.file, chunk.offset, chunk.length)
            raise
        self._to.filled(chunk.file, chunk.offset, chunk.length)
        self._meter.add(chunk.length, file.name)
