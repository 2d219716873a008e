"""Where weights go. The reader asks for memory, fills it, checks it, and says so, from several threads at once.

A destination on a device is a ring of pinned slots: :meth:`Destination.buffer` waits until a slot is free,
:meth:`Destination.filled` starts the copy to the device, and the slot is free again when that copy's event says so.
Bytes are never used before `filled`: that call is what says that their digest was right.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from snapshots.header import Tensor, parse_image
from snapshots.linux import MADV_HUGEPAGE, MADV_POPULATE_WRITE, address, advise
from snapshots.manifest import File

_HUGE = 2 * 2**20


class Destination(Protocol):
    def begin(self, files: Sequence[File], chunk_bytes: int) -> None:
        """Called once, before anything else, with the files that will be read."""

    def buffer(self, file: int, offset: int, length: int) -> memoryview:
        """``length`` writable bytes for that part of that file. Aligned to 4096 wherever ``offset`` is, for O_DIRECT.

        Called from the reader's threads; may wait. Each is followed by :meth:`filled` or :meth:`release`, on the same
        thread.
        """

    def filled(self, file: int, offset: int, length: int) -> None:
        """The bytes are there, and right."""

    def release(self, file: int, offset: int, length: int) -> None:
        """The bytes did not come, or are wrong: the memory is free, and nothing may be made of it."""


@dataclass(frozen=True, slots=True)
class TensorView:
    tensor: Tensor
    data: memoryview  # bytes, writable


class HostMemory:
    """Anonymous memory, one block for each file, laid out as the file is: tensors are views into it.

    Backed by huge pages where the kernel has them: faulting in 4 KiB pages costs more than ten times what reading
    does.
    """

    def __init__(self, *, prefault: bool = False, huge: bool = True) -> None:
        self._prefault, self._huge = prefault, huge
        self._blocks: list[mmap.mmap] = []
        self._files: list[memoryview] = []
        self._names: list[str] = []

    def begin(self, files: Sequence[File], chunk_bytes: int) -> None:
        """May be called ahead, to have the memory before the time counts: the same files once more do nothing."""
        if self._blocks and self._names == [file.name for file in files]:
            return
        for file in files:
            block = mmap.mmap(-1, max(file.size, 1) + _HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            start = -address(block) % _HUGE
            if self._huge:
                advise(address(block) + start, _round_up(max(file.size, 1)), MADV_HUGEPAGE)
            if self._prefault:
                advise(address(block) + start, _round_up(max(file.size, 1)), MADV_POPULATE_WRITE)
            self._blocks.append(block)
            self._files.append(memoryview(block)[start : start + file.size])
            self._names.append(file.name)

    def buffer(self, file: int, offset: int, length: int) -> memoryview:
        return self._files[file][offset : offset + length]

    def filled(self, file: int, offset: int, length: int) -> None:
        pass

    def release(self, file: int, offset: int, length: int) -> None:
        pass

    def file(self, number: int) -> memoryview:
        return self._files[number]

    def tensors(self) -> dict[str, TensorView]:
        """All tensors of all safetensors files, after a restore. Raise WeightsCorrupt for a header that is none."""
        out: dict[str, TensorView] = {}
        for name, data in zip(self._names, self._files, strict=True):
            out |= tensor_views(Path(name), data)
        return out

    def close(self) -> None:
        """Give the memory back. Fails with BufferError while views of it are held."""
        for view in self._files:
            view.release()
        self._files.clear()
        for block in self._blocks:
            block.close()
        self._blocks.clear()


class Discard:
    """Takes everything and keeps nothing: reading a snapshot only to check it. One chunk of memory for each
    thread."""

    def __init__(self) -> None:
        self._mine = threading.local()
        self._chunk_bytes = 0

    def begin(self, files: Sequence[File], chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes

    def buffer(self, file: int, offset: int, length: int) -> memoryview:
        scratch: memoryview | None = getattr(self._mine, "scratch", None)
        if scratch is None:
            scratch = memoryview(mmap.mmap(-1, self._chunk_bytes))
            self._mine.scratch = scratch
        return scratch[:length]

    def filled(self, file: int, offset: int, length: int) -> None:
        pass

    def release(self, file: int, offset: int, length: int) -> None:
        pass


def tensor_views(path: Path, data: memoryview) -> Mapping[str, TensorView]:
    """The tensors of one safetensors file that lies in memory. ``path`` names it in errors."""
    header = parse_image(path, data)
    start = header.header_bytes
    return {
        name: TensorView(tensor, data[start + tensor.start : start + tensor.stop])
        for name, tensor in header.tensors.items()
    }


def _round_up(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
