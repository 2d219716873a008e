"""How long answers took, kept for a minute, and their 99th percentile. Pure: times come in.

Two kinds, never mixed: *first* is from a request's start to the first byte of its answer, *gap* from one piece of a
stream to the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

KEPT_S = 60.0
KEPT = 20_000
ENOUGH = 30
"""Fewer say nothing about a 99th percentile."""

TAIL = 0.01
"""What lies above a 99th percentile, as long as nothing changes."""

Level = Mapping[tuple[str, str], float]
"""(model, kind) → 99th percentile in seconds, where there were enough samples."""


@dataclass(slots=True)
class Samples:
    _kept: dict[tuple[str, str], deque[tuple[float, float]]] = field(default_factory=dict)

    def add(self, model: str, kind: str, seconds: Iterable[float], now: float) -> None:
        kept = self._kept.setdefault((model, kind), deque(maxlen=KEPT))
        kept.extend((now, value) for value in seconds)
        while kept and kept[0][0] < now - KEPT_S:
            kept.popleft()

    def level(self, since: float, until: float = math.inf) -> Level:
        return {key: percentile(values) for key, values in self._between(since, until) if len(values) >= ENOUGH}

    def judged(self, before: Level, since: float, slow: float, fine: float) -> Judgement:
        """Since then, held against ``before``: has the 99th percentile risen above ``slow`` times what it was, or is it
        below ``fine`` times that? Over all that is known of both, the worst counts."""
        found = [
            _judged(values, before[key], slow, fine)
            for key, values in self._between(since, math.inf)
            if len(values) >= ENOUGH and before.get(key)
        ]
        return Judgement(
            slow=any(one.slow for one in found),
            fine=bool(found) and all(one.fine for one in found),
            ratio=max((one.ratio for one in found), default=None, key=lambda ratio: ratio or 0.0),
        )

    def any_since(self, since: float) -> bool:
        """Whether anything was served."""
        return any(kept and kept[-1][0] >= since for kept in self._kept.values())

    def _between(self, since: float, until: float) -> Iterator[tuple[tuple[str, str], list[float]]]:
        for key, kept in self._kept.items():
            yield key, [value for at, value in kept if since <= at <= until]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Neither ``slow`` nor ``fine``: in between, or not enough to tell. ``ratio`` is of the percentiles, for people."""

    slow: bool = False
    fine: bool = False
    ratio: float | None = None


def percentile(values: Iterable[float], share: float = 1 - TAIL) -> float:
    """The smallest value that at least ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def _judged(values: Sequence[float], level: float, slow: float, fine: float) -> Judgement:
    """The 99th percentile of a few dozen is as good as their largest, and would always look risen. So what is counted
    is how many lie above: one in a hundred is what may be, and more than chance would make of that is too many."""
    over = sum(value > slow * level for value in values)
    near = sum(value > fine * level for value in values)
    return Judgement(
        slow=over > chance(len(values)),
        fine=near <= math.ceil(TAIL * len(values)),
        ratio=percentile(values) / level,
    )


def chance(count: int) -> float:
    """How many of so many may lie above a 99th percentile by chance: two and a half standard deviations more than are
    to be expected, which is once in some hundred looks."""
    expected = TAIL * count
    return expected + 2.5 * math.sqrt(expected) + 0.5
