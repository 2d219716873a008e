"""How long a gate's answers take, gathered and told a few times a second: what the guard of loads looks at."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 0.25
MOST = 256
"""Of each kind at a time; beyond them every second one counts, then every fourth …"""

OnTimes = Callable[[list[float], list[float]], None]
"""(seconds to the first byte, seconds between pieces)"""


class Times:
    """Of all answers of one gate. ``told`` is called from :meth:`Clock.piece`: it must not block."""

    def __init__(self, told: OnTimes = lambda first, gaps: None, monotonic: Callable[[], float] = time.monotonic):
        self._told = told
        self.now = monotonic
        self._first: list[float] = []
        self._gaps: list[float] = []
        self._skip = 1
        self._seen = 0
        self._at = monotonic()

    def clock(self) -> Clock:
        """For a request that begins now."""
        return Clock(self, self.now())

    def add(self, seconds: float, now: float, *, first: bool) -> None:
        self._seen += 1
        if self._seen % self._skip == 0:
            kept = self._first if first else self._gaps
            kept.append(seconds)
            if len(kept) >= MOST:
                del kept[::2]
                self._skip *= 2
        if now - self._at >= EVERY_S:
            self._at = now
            told, self._first, self._gaps, self._skip = (self._first, self._gaps), [], [], 1
            self._told(*told)


class Clock:
    """Of one answer."""

    __slots__ = ("_last", "_started", "_times")

    def __init__(self, times: Times, started: float) -> None:
        self._times = times
        self._started = started
        self._last: float | None = None

    def piece(self) -> None:
        """Some of the answer's body goes out."""
        now = self._times.now()
        if self._last is None:
            self._times.add(now - self._started, now, first=True)
        else:
            self._times.add(now - self._last, now, first=False)
        self._last = now
