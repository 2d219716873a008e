"""Which of three ways a file is read, from what is true of it. The choice is pure; finding the facts is not."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum

from snapshots.linux import DirectAlignment, cached_fraction, direct_alignment

MOSTLY_CACHED = 0.8
"""Above it, copying from the page cache beats reading the rest around it."""

_MAX_ALIGNMENT = 4096  # what the layout guarantees for offsets, and page-aligned buffers for memory


class ReadPath(StrEnum):
    DIRECT = "direct"  # O_DIRECT, several threads: past the page cache, straight into the destination
    BUFFERED = "buffered"  # several threads copy out of the page cache
    MAPPED = "mapped"  # nothing is copied: the destination is the page cache itself, shared with other processes


@dataclass(frozen=True, slots=True)
class Facts:
    cached: float  # of the file, 0..1
    alignment: DirectAlignment | None  # None: O_DIRECT is not possible, or nobody knows


def choose(facts: Facts) -> ReadPath:
    """DIRECT or BUFFERED; MAPPED is not for this reader to choose, but for an engine that computes from mapped
    memory."""
    if facts.cached >= MOSTLY_CACHED:
        return ReadPath.BUFFERED
    if facts.alignment is None or max(facts.alignment.memory, facts.alignment.offset) > _MAX_ALIGNMENT:
        return ReadPath.BUFFERED
    return ReadPath.DIRECT


def facts(descriptor: int) -> Facts:
    alignment = direct_alignment(descriptor)
    if alignment is None:
        alignment = _try_direct(descriptor)
    return Facts(cached_fraction(descriptor), alignment)


def _try_direct(descriptor: int) -> DirectAlignment | None:
    """Kernels before 6.1 do not tell: whether the file opens with O_DIRECT has to do."""
    try:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
    except OSError:
        return None
    return DirectAlignment(_MAX_ALIGNMENT, _MAX_ALIGNMENT)
