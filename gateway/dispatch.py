"""The hot path's choice: a ready replica with room, from memory. Gates have the last word, this is only a good
guess."""

from __future__ import annotations

import asyncio
import logging

from gateway.view import Target, View

_log = logging.getLogger("rewarm.gateway.dispatch")

EJECTED_S = 1.0
"""A replica that could not be reached, or broke off an answer, is left out this long at least, and until its worker has
reported again."""


class Dispatcher:
    def __init__(self, view: View) -> None:
        self._view = view
        self._loop = asyncio.get_running_loop()
        self._in_flight: dict[str, int] = {}
        self._ejected: dict[str, tuple[float, int]] = {}  # replica → (until, the heartbeat it was ejected under)
        self.ejections = 0

    def choose(self, model: str, tried: frozenset[str] = frozenset()) -> Target | None:
        """The replica with the smallest share of its slots in use by this gateway, one that sleeps only where no other
        has room; None when none has."""
        return self._least(self._view.ready(model), tried) or self._least(self._view.asleep(model), tried)

    def _least(self, targets: list[Target], tried: frozenset[str]) -> Target | None:
        best: Target | None = None
        least = 1.0
        for target in targets:
            load = self._in_flight.get(target.replica, 0) / (target.slots or 1)
            if load < least and target.replica not in tried and not (self._ejected and self._is_out(target)):
                best, least = target, load
        return best

    def enter(self, replica: str) -> None:
        self._in_flight[replica] = self._in_flight.get(replica, 0) + 1

    def leave(self, replica: str) -> None:
        left = self._in_flight[replica] - 1
        if left:
            self._in_flight[replica] = left
        else:
            del self._in_flight[replica]

    def in_flight(self, replica: str) -> int:
        return self._in_flight.get(replica, 0)

    def eject(self, replica: str) -> None:
        """Passive health: nothing answers there, or no more, so nobody else is sent there until its worker says it
        lives."""
        report_ms = next(
            (
                beat.at_ms
                for beat in self._view.fleet.workers.values()
                if any(r.replica == replica for r in beat.replicas)
            ),
            0,
        )
        _log.warning("replica=%s ejected until its worker reports again", replica)
        self._ejected[replica] = (self._loop.time() + EJECTED_S, report_ms)
        self.ejections += 1
        self._view.hint()

    def _is_out(self, target: Target) -> bool:
        out = self._ejected.get(target.replica)
        if out is None:
            return False
        until, beat_ms = out
        # Without Redis no newer heartbeat can arrive: then the time alone decides.
        if self._loop.time() < until or (self._view.available and target.beat_ms <= beat_ms):
            return True
        del self._ejected[target.replica]
        return False

    def prune(self) -> None:
        """Forget ejected replicas that no longer exist."""
        if self._ejected:
            now = self._loop.time()
            self._ejected = {r: out for r, out in self._ejected.items() if now < out[0] + 60}
