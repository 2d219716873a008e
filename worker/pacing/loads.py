"""The guard of one worker: what it has measured of what it serves, and how fast each of its loads may go."""

from __future__ import annotations

from dataclasses import dataclass, field

from worker.pacing.guard import FINE, QUIET_S, TOO_SLOW, Pace, begin, decide
from worker.pacing.samples import Judgement, Level, Samples

BEFORE_S = 30.0
"""The level before a load is that of so long a time."""


@dataclass(slots=True)
class Loads:
    """``on`` False: every load goes as fast as it can, whatever it costs."""

    on: bool = True
    samples: Samples = field(default_factory=Samples)
    running: dict[str, int] = field(default_factory=dict)  # requests by replica
    _before: Level = field(default_factory=dict)
    _paces: dict[str, Pace] = field(default_factory=dict)

    def begin(self, replica: str, now: float, *, waited_for: bool) -> Pace:
        """A load begins. The level that it is held against is that before the first of those that overlap.
        ``waited_for``: somebody waits for it."""
        if not self.on:
            return Pace()
        if not self._paces:
            self._before = self.samples.level(now - BEFORE_S, now)
        pace = self._paces[replica] = begin(now, serving=self._serving(now), waited_for=waited_for)
        return pace

    def look(self, replica: str, now: float, *, waited_for: bool) -> Pace:
        """How fast it may go from now on."""
        pace = self._paces.get(replica)
        if pace is None:
            return Pace()
        # Without a level from before there is nothing that it could be held against.
        seen = self.samples.judged(self._before, pace.since, TOO_SLOW, FINE) if self._before else Judgement(fine=True)
        self._paces[replica] = decide(pace, seen, now, serving=self._serving(now), waited_for=waited_for)
        return self._paces[replica]

    def _serving(self, now: float) -> bool:
        """Also where answers are so slow that nothing was measured lately."""
        return any(self.running.values()) or self.samples.any_since(now - QUIET_S)

    def end(self, replica: str) -> None:
        self._paces.pop(replica, None)
