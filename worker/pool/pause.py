"""How long what failed is left alone before it is tried again. Pure: time is passed in, in seconds of one clock."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Pause:
    """``first_s`` after the first failure, twice as long after each further one, ``longest_s`` at most; short again
    once it went well for ``longest_s``. ``until``: no try before that."""

    first_s: float
    longest_s: float
    until: float = -math.inf
    _next_s: float = 0.0

    def failed(self, now: float) -> float:
        """Seconds until the next try."""
        pause_s = self.first_s if now - self.until > self.longest_s else self._next_s
        self._next_s = min(self.longest_s, pause_s * 2)
        self.until = now + pause_s
        return pause_s
