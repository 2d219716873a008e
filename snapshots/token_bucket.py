"""A bandwidth limit that may change while it is in force. Pure: time comes in, seconds to wait go out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """``rate`` in bytes a second, None for no limit. What is taken beyond the bucket is owed: the next one waits.

    A request larger than ``burst`` is thus possible, and the rate still holds over time.
    """

    rate: float | None
    burst: float
    _tokens: float = 0.0
    _at: float | None = None

    def take(self, amount: float, now: float) -> float:
        """Take ``amount`` and return the seconds to wait before using it."""
        self._refill(now)
        self._tokens -= amount
        return self.debt_s()

    def debt_s(self) -> float:
        """Seconds until what was taken is paid for, at the rate of now."""
        if self.rate is None or self._tokens >= 0:
            return 0.0
        return -self._tokens / self.rate

    def advance(self, now: float) -> float:
        """:meth:`debt_s`, at ``now``."""
        self._refill(now)
        return self.debt_s()

    def set_rate(self, rate: float | None, now: float) -> None:
        """From now on. Debts stay in bytes: at a higher rate they are paid sooner; without a limit there are none."""
        if rate is not None and rate <= 0:
            raise ValueError("a rate is positive, or None for no limit")
        self._refill(now)
        self.rate = rate
        if rate is None:
            self._tokens = 0.0

    def _refill(self, now: float) -> None:
        if self._at is None:
            self._tokens = self.burst if self._tokens == 0 else self._tokens
        elif self.rate is None:
            self._tokens = 0.0
        else:
            self._tokens = min(self.burst, self._tokens + max(0.0, now - self._at) * self.rate)
        self._at = now
