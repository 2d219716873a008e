"""What has to go to make room. Pure: nothing here touches a disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Candidate:
    snapshot_id: str
    folder: Path
    size_bytes: int
    priority: int  # higher stays longer
    last_used: float  # seconds since the epoch
    pinned: bool = False
    leased: bool = False
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """``missing_bytes`` above 0: it cannot be done, and then ``victims`` is empty: nothing is evicted in vain."""

    victims: tuple[Candidate, ...]
    missing_bytes: int = 0


def shortage(*, need_bytes: int, free_bytes: int, floor_bytes: int, used_bytes: int, capacity_bytes: int | None) -> int:
    """Bytes to free before ``need_bytes`` may be written: the disk keeps its floor and the store its capacity."""
    short = need_bytes + floor_bytes - free_bytes
    if capacity_bytes is not None:
        short = max(short, used_bytes + need_bytes - capacity_bytes)
    return max(0, short)


def plan_eviction(candidates: Iterable[Candidate], short_bytes: int) -> Plan:
    """Choose among what is neither pinned nor leased: quarantined first, then by priority, then the longest unused."""
    if short_bytes <= 0:
        return Plan(())
    free = [c for c in candidates if not c.pinned and not c.leased]
    free.sort(key=lambda c: (not c.quarantined, c.priority, c.last_used, c.snapshot_id))
    victims: list[Candidate] = []
    freed = 0
    for candidate in free:
        if freed >= short_bytes:
            break
        victims.append(candidate)
        freed += candidate.size_bytes
    if freed < short_bytes:
        return Plan((), short_bytes - freed)
    # A small one chosen early may be needless once a large one had to go: let the best of the victims stay.
    for candidate in reversed(victims[:-1]):
        if freed - candidate.size_bytes >= short_bytes:
            victims.remove(candidate)
            freed -= candidate.size_bytes
    return Plan(tuple(victims))
