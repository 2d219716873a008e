"""Weights that are not read at all: mapped, private and writable, shared through the page cache by every process.

For engines that compute on the CPU. Private, so that nothing reaches the file; writable, because engines write to a
few small tensors, and a read-only map would end them. A snapshot's files are never written or cut once published, and
a lease keeps them from being removed while the map is used: a mapped file that shrinks kills its readers.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from types import TracebackType

from snapshots.lease import Lease
from snapshots.linux import MADV_POPULATE_READ, address, advise, anonymous_bytes, cached_fraction
from snapshots.manifest import File
from snapshots.reading import open_file
from snapshots.restore.destination import TensorView, tensor_views
from snapshots.restore.paths import ReadPath
from snapshots.restore.reader import Restored
from snapshots.restore.run import RestoreOptions, Seen, run_chunks

MOSTLY_CACHED = 0.8
"""Below it the disk decides how long a load takes, and comparing digests on the way costs nothing."""

_SAMPLES = 64  # stretches of a file, to tell whether it is in the page cache


class _MappedFile:
    def __init__(self, lease: Lease, file: File) -> None:
        self.name, self.where = file.name, lease.folder / file.name
        descriptor = open_file(lease.descriptor, file, lease.folder)
        try:
            self.map = mmap.mmap(descriptor, file.size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(descriptor)  # the map keeps its own
        self.start = address(self.map)
        self.size = file.size

    def read(self, view: memoryview, offset: int, seen: Seen) -> None:
        """Bring the pages in and into our page table, in one call. Where the kernel cannot, the digest touches
        them."""
        advise(self.start + offset, len(view), MADV_POPULATE_READ)
        seen(view)


class MappedWeights:
    """Made by :func:`map_weights`. Also the destination of its own reading: the bytes are where they belong
    already."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._wanted = [file for file in lease.manifest.weight_files if file.size]
        self._files = [_MappedFile(lease, file) for file in self._wanted]

    @property
    def cached(self) -> float:
        """About how much of the files the page cache holds now, 0..1."""
        total = sum(file.size for file in self._wanted)
        if not total:
            return 1.0
        held = 0.0
        for file in self._wanted:
            descriptor = open_file(self._lease.descriptor, file, self._lease.folder)
            try:
                held += cached_fraction(descriptor, _SAMPLES) * file.size
            finally:
                os.close(descriptor)
        return held / total

    @property
    def mostly_cached(self) -> bool:
        """Whether it would cost time to compare digests before the weights are used."""
        return self.cached >= MOSTLY_CACHED

    def tensors(self) -> dict[str, TensorView]:
        out: dict[str, TensorView] = {}
        for file in self._files:
            out |= tensor_views(file.where, memoryview(file.map))
        return out

    def file(self, number: int) -> memoryview:
        return memoryview(self._files[number].map)

    def populate(self, options: RestoreOptions | None = None) -> Restored:
        """Bring all pages in, in parallel, and compare digests if ``options.verify``. Before anybody writes to the
        map: a private page that was written to is no longer the file's."""
        options = options or RestoreOptions()
        start = time.perf_counter()
        total = run_chunks(self._files, self._wanted, self._lease.manifest.chunk_bytes, self, options)
        return Restored(total, time.perf_counter() - start, {file.name: ReadPath.MAPPED for file in self._wanted})

    def written_bytes(self) -> int:
        """Of the map that are no longer the file's: private pages that somebody wrote to."""
        return anonymous_bytes((file.start, file.start + file.size) for file in self._files)

    def drop(self, *, page_cache: bool = False) -> None:
        """Give the pages back. Whoever reads one next gets it from the file again, so what was written to is lost: see
        :meth:`written_bytes`. ``page_cache``: from there too, as far as no other process maps them."""
        for file in self._files:
            file.map.madvise(mmap.MADV_DONTNEED)
        if page_cache:
            for file, wanted in zip(self._files, self._wanted, strict=True):
                descriptor = open_file(self._lease.descriptor, wanted, file.where.parent)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)

    def fetch(self) -> None:
        """Bring all pages in again, without looking at them."""
        for file in self._files:
            advise(file.start, file.size, MADV_POPULATE_READ)

    def begin(self, files: Sequence[File], chunk_bytes: int) -> None:
        pass

    def buffer(self, file: int, offset: int, length: int) -> memoryview:
        return memoryview(self._files[file].map)[offset : offset + length]

    def filled(self, file: int, offset: int, length: int) -> None:
        pass

    def release(self, file: int, offset: int, length: int) -> None:
        pass

    def close(self) -> None:
        """Fails with BufferError while tensors are held."""
        for file in self._files:
            file.map.close()

    def __enter__(self) -> MappedWeights:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def map_weights(lease: Lease) -> MappedWeights:
    """Map the weights; nothing is read yet. The caller keeps the lease for as long as it uses any tensor.

    Raise WeightsMissing or WeightsCorrupt for a file that is not there, or has another size.
    """
    return MappedWeights(lease)
