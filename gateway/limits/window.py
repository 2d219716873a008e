"""What one key has spent of a limit within the last minute. Pure; seconds are whole ones of Redis' clock.

A limit holds over all gateways, and none of them asks another before it lets a request in: each tells the fleet once a
second what it has spent, and reads what the others have. Between two of these it spends at most its share of what was
left, so that all together stay near the limit: see :data:`Window.BOUND`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

WINDOW_S = 60


class Window:
    """One limit of one key, in requests or in tokens."""

    BOUND = """One gateway never lets more than ``limit`` pass within 60 s. Of ``n`` gateways each may, before it hears
    of the others' last second, spend its share of what it saw left: together at most ``(n - 1) / n`` of the limit too
    much, and one request each; only where all are asked at once, at the worst moment."""

    __slots__ = ("_gateways", "_mine", "_others", "_told", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._mine: dict[int, int] = {}  # second → spent here
        self._told: dict[int, int] = {}  # of it, what the others have been told
        self._others: dict[int, int] = {}
        self._gateways = 1

    def used(self, second: int) -> int:
        return _sum(self._mine, second) + _sum(self._others, second)

    def left(self, second: int) -> int:
        return max(0, self.limit - self.used(second))

    def wait_s(self, amount: int, second: int) -> int:
        """0: ``amount`` may be spent now. Otherwise the seconds until it may, as far as is known; a minute at most."""
        over = self.used(second) + amount - self.limit
        if over <= 0:
            return 0 if self._in_share(amount, second) else 1
        spent = {at: self._mine.get(at, 0) + self._others.get(at, 0) for at in self._mine.keys() | self._others.keys()}
        for at in sorted(at for at in spent if at > second - WINDOW_S):
            over -= spent[at]
            if over <= 0:
                return at + WINDOW_S - second
        return WINDOW_S

    def reset_s(self, second: int) -> int:
        """Until all that was spent is forgotten."""
        spent = [at for at, amount in (*self._mine.items(), *self._others.items()) if amount and at > second - WINDOW_S]
        return max(spent) + WINDOW_S - second if spent else 0

    def spend(self, amount: int, second: int) -> None:
        self._mine[second] = self._mine.get(second, 0) + amount

    def correct(self, amount: int, spent_at: int, second: int) -> None:
        """What was spent at ``spent_at`` was ``amount`` more, or less. A refund of what is forgotten is none."""
        if spent_at > second - WINDOW_S:
            self.spend(amount, spent_at)
        elif amount > 0:
            self.spend(amount, second)

    # --- with the other gateways -----------------------------------------------------------------------------------

    def mine(self, second: int) -> dict[int, int]:
        """Second → what was spent here in all of it, to tell the others."""
        self._mine = _recent(self._mine, second)
        return dict(self._mine)

    def learn(self, told: Mapping[int, int], others: Mapping[int, int], gateways: int) -> None:
        """``told`` (of :meth:`mine`) has reached the others, who have spent ``others``."""
        self._told, self._others, self._gateways = dict(told), dict(others), max(1, gateways)

    def _in_share(self, amount: int, second: int) -> bool:
        """One request always is: else one that is larger than a share would never be let in."""
        untold = _sum(self._mine, second) - _sum(self._told, second)
        if untold <= 0:
            return True
        left = self.limit - self.used(second) + untold
        return untold + amount <= math.ceil(left / self._gateways)


def _recent(spent: Mapping[int, int], second: int) -> dict[int, int]:
    return {at: amount for at, amount in spent.items() if at > second - WINDOW_S}


def _sum(spent: Mapping[int, int], second: int) -> int:
    return sum(amount for at, amount in spent.items() if at > second - WINDOW_S)
