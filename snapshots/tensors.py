"""Tensors of checkpoint files, read piece by piece with bounded memory, by whoever writes or digests them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from snapshots.checkpoint import Checkpoint
from snapshots.digests import CHUNK_BYTES
from snapshots.errors import Cancelled, WeightsCorrupt, WeightsMissing
from snapshots.layout import TensorSpec
from snapshots.reading import Unchanged
from snapshots.throttle import Throttle


class TensorReader:
    """Holds every weight file of a checkpoint open, and notices when one changes. A context manager."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        cancel: threading.Event | None = None,
        throttle: Throttle | None = None,
        allow_holes: bool = False,
    ) -> None:
        self._cancel, self._throttle = cancel, throttle
        self._buffer = memoryview(bytearray(CHUNK_BYTES))
        self._where: dict[str, tuple[int, Path, int, int]] = {}  # tensor → descriptor, file, start, stop
        self._descriptors: list[int] = []
        self._watched: list[Unchanged] = []
        try:
            for file in checkpoint.files:
                self._open(file.path, file.file_bytes, allow_holes=allow_holes)
                for name, tensor in file.header.tensors.items():
                    start = file.header.header_bytes + tensor.start
                    self._where[name] = (self._descriptors[-1], file.path, start, start + tensor.data_bytes)
        except BaseException:
            self.close()
            raise

    def pieces(self, tensor: TensorSpec) -> Iterator[memoryview]:
        """The tensor's bytes in pieces of at most 4 MiB. A piece is valid until the next one is asked for."""
        descriptor, path, at, stop = self._where[tensor.name]
        while at < stop:
            want = min(stop - at, CHUNK_BYTES)
            if self._throttle is not None:
                self._throttle.wait(want, self._cancel)
            if self._cancel is not None and self._cancel.is_set():
                raise Cancelled(f"cancelled while reading {path.name}")
            try:
                got = os.preadv(descriptor, [self._buffer[:want]], at)
            except OSError as error:
                raise WeightsCorrupt(path, f"cannot be read: {error.strerror or error}", offset=at) from error
            if got == 0:
                raise WeightsCorrupt(path, "the file shrank while it was read", offset=at)
            yield self._buffer[:got]
            at += got

    def check_unchanged(self) -> None:
        """Raise FileChanged when a file is not the one whose header was read."""
        for watched in self._watched:
            watched.check()

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _open(self, path: Path, size: int, *, allow_holes: bool) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WeightsMissing(path, error.strerror or str(error)) from error
        self._descriptors.append(descriptor)
        self._watched.append(Unchanged(descriptor, path))
        now = os.fstat(descriptor).st_size
        if now != size:
            raise WeightsCorrupt(path, f"has {now} bytes, its header was read at {size}", offset=min(now, size))
        if not allow_holes:
            refuse_holes(descriptor, path, size)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)


def refuse_holes(descriptor: int, path: Path, size: int) -> None:
    """A hole reads as zeros: what an interrupted download leaves where it reserved its space first."""
    try:
        hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:
        return  # a file system that knows no holes
    if hole < size:
        raise WeightsCorrupt(path, "is sparse: this part of it was never written", offset=hole)


def total_bytes(tensors: Sequence[TensorSpec]) -> int:
    return sum(tensor.data_bytes for tensor in tensors)
