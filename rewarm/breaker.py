"""A breaker: after failures in a row nobody is sent there for a while; then one request is, and its end decides. Pure.

Closed → (failures in a row) → open → (its time is over) → half-open: one probe → closed, or open for twice as long.
Time is passed in, in seconds of any clock that does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

FAILURES = 5
"""In a row, without any success between them."""

OPEN_S = 5.0
LONGEST_OPEN_S = 300.0
PROBE_S = 60.0
"""A probe that has told nothing for so long does not count: its client left, or it runs long. Another one is let in."""


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Breaker:
    failures: int = 0  # in a row
    trips: int = 0  # times it opened since it was last closed
    open_until_s: float | None = None  # None: closed
    probe_since_s: float | None = None
    reason: str = ""  # the code of the last failure


CLOSED = Breaker()


def state(breaker: Breaker, now_s: float) -> State:
    if breaker.open_until_s is None:
        return State.CLOSED
    return State.OPEN if now_s < breaker.open_until_s else State.HALF_OPEN


def opens_in_s(breaker: Breaker, now_s: float) -> float:
    """Seconds until a request may be let in; 0 when one may now."""
    if breaker.open_until_s is None:
        return 0.0
    probe_until_s = 0.0 if breaker.probe_since_s is None else breaker.probe_since_s + PROBE_S
    return max(0.0, breaker.open_until_s - now_s, probe_until_s - now_s)


def admit(breaker: Breaker, now_s: float) -> Breaker | None:
    """The breaker once the request is in; None when it is refused."""
    if opens_in_s(breaker, now_s) > 0:
        return None
    if breaker.open_until_s is None:
        return breaker
    return replace(breaker, probe_since_s=now_s)


def succeeded(breaker: Breaker) -> Breaker:
    """The answer began, or the request was at fault itself: whoever answers so is well."""
    return CLOSED


def failed(breaker: Breaker, reason: str, now_s: float, *, retry_after_s: float | None = None) -> Breaker:
    """``retry_after_s``: what the other side asked for. It opens at once then: to ask again sooner is no use."""
    failures = breaker.failures + 1
    counted = replace(breaker, failures=failures, probe_since_s=None, reason=reason)
    if breaker.open_until_s is not None and now_s < breaker.open_until_s:
        return replace(counted, probe_since_s=breaker.probe_since_s)  # sent before it opened: known already
    probing = breaker.open_until_s is not None
    if retry_after_s is None and not probing and failures < FAILURES:
        return counted
    trips = breaker.trips + 1
    backoff_s = min(OPEN_S * 2.0 ** min(trips - 1, 10), LONGEST_OPEN_S)
    open_s = backoff_s if retry_after_s is None else min(max(retry_after_s, 0.0), LONGEST_OPEN_S)
    return replace(counted, trips=trips, open_until_s=now_s + open_s)


def given_up(breaker: Breaker) -> Breaker:
    """The request ended without telling anything of the other side: another may be the probe."""
    return breaker if breaker.probe_since_s is None else replace(breaker, probe_since_s=None)
