"""Requests that went straight to a replica that slept, and woke it: the answer may overtake its worker's word of that.

What the wake was made of is then taken from the first later reading of the fleet, as long as the request lives and for
a moment after. Neither the answer nor its receipt waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.calls import Call
from gateway.view import View
from rewarm.wakes import wake_of

TOLD_WITHIN_S = 3.0
"""After the answer's end. A worker speaks at once, and again with every heartbeat; one that does not is gone."""


class Woken:
    """The calls of which the wake has not been told yet. ``call.slept`` says what they went to."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._loop = asyncio.get_running_loop()
        self._untold: dict[Call, Callable[[], None] | None] = {}

    def __len__(self) -> int:
        return len(self._untold)

    def expect(self, call: Call) -> bool:
        """Fill in ``call.wake`` now or at a later reading. True: later."""
        if _filled_in(call, self._view):
            return False
        self._untold[call] = None
        return True

    def look(self) -> None:
        """Called for each reading of the fleet."""
        for call in [call for call in self._untold if _filled_in(call, self._view)]:
            self._done(call)

    def ended(self, call: Call, then: Callable[[], None]) -> bool:
        """The call is over. True: ``then`` is called once, when its wake has been told, or will not be. False: there is
        nothing to wait for."""
        if call not in self._untold:
            return False
        if _filled_in(call, self._view):
            del self._untold[call]
            return False
        self._untold[call] = then
        self._loop.call_later(TOLD_WITHIN_S, self._done, call)
        return True

    def close(self) -> None:
        """Nothing will be told any more."""
        for call in list(self._untold):
            self._done(call)

    def _done(self, call: Call) -> None:
        then = self._untold.pop(call, None)
        if then is not None:
            then()


def _filled_in(call: Call, view: View) -> bool:
    """Whether nothing is left to be told of it."""
    slept = call.slept
    if slept is None:  # it has gone on to somebody else
        return True
    worker, report = view.located(slept.replica)
    if report is None or report.ready_at_ms <= slept.ready_at_ms:  # what it tells of is the load before
        return False
    call.worker, call.tier, call.wake = worker, report.tier, wake_of(worker, report)
    return True
