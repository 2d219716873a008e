"""The reader: plain threads, ``preadv``, 4 MiB chunks, straight into the destination, each checked before it
counts."""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from snapshots.errors import FileChanged, WeightsCorrupt
from snapshots.lease import Lease
from snapshots.manifest import File, FileKind
from snapshots.reading import Unchanged, open_file
from snapshots.restore.destination import Destination, Discard
from snapshots.restore.paths import ReadPath, choose, facts
from snapshots.restore.run import RestoreOptions, Seen, check, chunks_of, run_chunks

_BLOCK = 4096
_PIECE = 512 * 1024
"""What is copied out of the page cache and digested while the processor's cache still holds it: a third of the cost."""


@dataclass(frozen=True, slots=True)
class Restored:
    total_bytes: int
    seconds: float
    paths: dict[str, ReadPath]  # by file name


class _OpenFile:
    """One file, open both ways: past the page cache if that is its path, and through it for its last bytes."""

    def __init__(self, lease: Lease, file: File, wanted: ReadPath | None) -> None:
        self.name, self.where = file.name, lease.folder / file.name
        self.buffered = open_file(lease.descriptor, file, lease.folder)
        self.direct: int | None = None
        self.path = choose(facts(self.buffered)) if wanted is None else wanted
        if self.path is ReadPath.DIRECT:
            try:
                self.direct = open_file(lease.descriptor, file, lease.folder, os.O_RDONLY | os.O_DIRECT)
            except OSError:
                self.path = ReadPath.BUFFERED
        self.unchanged = Unchanged(self.buffered, self.where)

    def close(self) -> None:
        os.close(self.buffered)
        if self.direct is not None:
            os.close(self.direct)

    def read(self, view: memoryview, offset: int, seen: Seen) -> None:
        """Raise WeightsCorrupt or FileChanged."""
        done = self._read_direct(view, offset) if self.direct is not None else 0
        if done:
            seen(view[:done])
        while done < len(view):
            try:
                got = os.preadv(self.buffered, [view[done : done + _PIECE]], offset + done)
            except OSError as error:
                raise self._unreadable(error, offset + done) from error
            if got == 0:
                raise FileChanged(self.where, "ended before its size", offset=offset + done)
            seen(view[done : done + got])
            done += got

    def _read_direct(self, view: memoryview, offset: int) -> int:
        """Read the whole blocks; return how far it came. What is left is the tail, or what O_DIRECT will not do."""
        assert self.direct is not None
        whole = len(view) // _BLOCK * _BLOCK
        done = 0
        while done < whole:
            try:
                got = os.preadv(self.direct, [view[done:whole]], offset + done)
            except OSError as error:
                if error.errno == errno.EINVAL:  # memory that is not aligned
                    return done
                raise self._unreadable(error, offset + done) from error
            done += got
            if got == 0 or got % _BLOCK:  # the file ends here, or a signal came: go on through the page cache
                return done
        return done

    def _unreadable(self, error: OSError, offset: int) -> WeightsCorrupt:
        return WeightsCorrupt(self.where, f"cannot be read: {error.strerror or error}", offset=offset)


def restore_weights(lease: Lease, to: Destination, options: RestoreOptions | None = None) -> Restored:
    """Read the snapshot's weights into ``to``. The caller keeps the lease until it is done with what it has read.

    Raise DigestMismatch, FileChanged or WeightsCorrupt with file and offset; Cancelled. All threads have ended then.
    """
    options = options or RestoreOptions()
    wanted = [file for file in lease.manifest.files if file.kind in options.kinds]
    chunk_bytes = lease.manifest.chunk_bytes
    start = time.perf_counter()
    with ExitStack() as stack:
        files = []
        for file in wanted:
            files.append(_OpenFile(lease, file, options.path))
            stack.callback(files[-1].close)
        to.begin(wanted, chunk_bytes)
        total = run_chunks(files, wanted, chunk_bytes, to, options)
        for opened in files:
            opened.unchanged.check()
        return Restored(total, time.perf_counter() - start, {file.name: file.path for file in files})


def verify_snapshot(lease: Lease, options: RestoreOptions | None = None) -> Restored:
    """Read every file of the snapshot, extras too, and compare all digests. Keeps nothing."""
    return restore_weights(
        lease, Discard(), replace(options or RestoreOptions(), verify=True, kinds=frozenset(FileKind))
    )


def read_extra(lease: Lease, name: str) -> bytes:
    """One small file of the snapshot, checked."""
    for file in lease.manifest.files:
        if file.name == name:
            break
    else:
        raise KeyError(name)
    descriptor = open_file(lease.descriptor, file, lease.folder)
    try:
        data = bytearray(file.size)
        done = 0
        while done < file.size and (got := os.preadv(descriptor, [memoryview(data)[done:]], done)):
            done += got
    finally:
        os.close(descriptor)
    for chunk in chunks_of([file], lease.manifest.chunk_bytes):
        check(chunk, memoryview(data)[chunk.offset : chunk.offset + chunk.length], lease.folder / name)
    return bytes(data)
