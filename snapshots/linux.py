"""System calls that Python's standard library does not offer. Each says None or False where the kernel does not have
it.

Called through ctypes, which releases the interpreter's lock: a thread that faults in memory does not stop the others.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

MADV_HUGEPAGE = 14
MADV_POPULATE_READ = 22  # Linux 5.14
MADV_POPULATE_WRITE = 23

IOPRIO_CLASS_BEST_EFFORT = 2
IOPRIO_CLASS_IDLE = 3

_IOPRIO_WHO_PROCESS = 1
_IOPRIO_CLASS_SHIFT = 13
_NR_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_NR_CACHESTAT = 451  # Linux 6.5, the same number everywhere

_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000  # Linux 6.1
_STATX_BYTES = 256
_STATX_MASK_AT, _STATX_DIO_MEM_AT, _STATX_DIO_OFFSET_AT = 0, 0x98, 0x9C

_STRETCH_BYTES = 256 * 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class DirectAlignment:
    """What O_DIRECT wants of a file: bytes that memory and offsets are multiples of."""

    memory: int
    offset: int


class _Cachestat(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


class _CachestatRange(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


def address(buffer: mmap.mmap | memoryview) -> int:
    """Where a writable buffer begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def advise(start: int, length: int, advice: int) -> bool:
    """``madvise``; False when the kernel refuses."""
    return bool(_libc.madvise(start, length, advice) == 0)


def anonymous_bytes(ranges: Iterable[tuple[int, int]]) -> int:
    """Of this process's memory between the addresses: pages that belong to no file."""
    wanted = sorted(ranges)
    total, inside = 0, False
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as lines:
        for line in lines:
            first, _, _ = line.partition(" ")
            if not first.endswith(":"):
                start, _, end = first.partition("-")
                inside = any(int(start, 16) < stop and begin < int(end, 16) for begin, stop in wanted)
            elif inside and first == "Anonymous:":
                total += int(line.split()[1]) * 1024
    return total


def cached_fraction(descriptor: int, samples: int = 0) -> float:
    """How much of a file the page cache holds, 0..1. ``samples``: look at so many stretches of a large one only; all of
    3 GB takes 40 ms."""
    size = os.fstat(descriptor).st_size
    if size == 0:
        return 1.0
    if samples and size > samples * _STRETCH_BYTES and _cachestat(descriptor, 0, 1) is not None:
        starts = (number * (size - _STRETCH_BYTES) // max(1, samples - 1) for number in range(samples))
        seen = [(_cachestat(descriptor, start, _STRETCH_BYTES) or 0) * mmap.PAGESIZE for start in starts]
        return min(1.0, sum(min(_STRETCH_BYTES, held) for held in seen) / (samples * _STRETCH_BYTES))
    cached = _cachestat(descriptor, 0, size)
    if cached is None:
        cached = _mincore(descriptor, size)
    return min(1.0, cached * mmap.PAGESIZE / size)


def direct_alignment(descriptor: int) -> DirectAlignment | None:
    """None: the kernel does not say, or the file cannot be read so."""
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        done = _libc.statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, buffer)
    except AttributeError:
        return None
    if done != 0 or not _u32(buffer, _STATX_MASK_AT) & _STATX_DIOALIGN:
        return None
    memory, offset = _u32(buffer, _STATX_DIO_MEM_AT), _u32(buffer, _STATX_DIO_OFFSET_AT)
    return DirectAlignment(memory, offset) if memory and offset else None


def set_io_priority(io_class: int, level: int = 0) -> bool:
    """Of the calling thread. IDLE: its reads and writes wait until nobody else wants the disk."""
    number = _NR_IOPRIO_SET.get(platform.machine())
    if number is None:
        return False
    value = (io_class << _IOPRIO_CLASS_SHIFT) | level
    return bool(_libc.syscall(ctypes.c_long(number), _IOPRIO_WHO_PROCESS, 0, value) == 0)


def set_io_class(task: int, name: str | None) -> bool:
    """Of another thread: ``idle`` or ``best-effort``; None: as its nice value says. False where it is not ours."""
    number = _NR_IOPRIO_SET.get(platform.machine())
    if number is None:
        return False
    value = {None: 0, "best-effort": IOPRIO_CLASS_BEST_EFFORT, "idle": IOPRIO_CLASS_IDLE}[name] << _IOPRIO_CLASS_SHIFT
    value |= 4 if name == "best-effort" else 0
    return bool(_libc.syscall(ctypes.c_long(number), _IOPRIO_WHO_PROCESS, task, value) == 0)


def idle_io() -> None:
    """For the start of a thread whose work can wait, also for ever: on a disk that is always busy it never ends."""
    set_io_priority(IOPRIO_CLASS_IDLE)


def last_io() -> None:
    """For the start of a thread whose work comes after others', and to an end."""
    set_io_priority(IOPRIO_CLASS_BEST_EFFORT, 7)


def _cachestat(descriptor: int, start: int, size: int) -> int | None:
    where, found = _CachestatRange(start, size), _Cachestat()
    args = (ctypes.c_int(descriptor), ctypes.byref(where), ctypes.byref(found), ctypes.c_uint(0))
    if _libc.syscall(ctypes.c_long(_NR_CACHESTAT), *args) != 0:
        return None
    return int(found.cached)


def _mincore(descriptor: int, size: int) -> int:
    pages = -(-size // mmap.PAGESIZE)
    # Private and writable, because that is the only kind whose address Python gives away. Nothing is read or written.
    with mmap.mmap(descriptor, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        vector = ctypes.create_string_buffer(pages)
        if _libc.mincore(address(mapped), size, vector) != 0:
            return 0
        return sum(byte & 1 for byte in vector.raw)


def _u32(buffer: ctypes.Array[ctypes.c_char], at: int) -> int:
    return int.from_bytes(buffer.raw[at : at + 4], "little")
