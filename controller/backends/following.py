"""What the reading of one kind of object does next: list, watch on, or wait. Pure.

As every client of an API server does it: list once, watch from the version that the list had, go on from the last
version after a drop. A version that the server no longer knows (410) means another list. Refusals (403: no right; 404:
no such kind) are asked again rarely, because an operator may put them right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
STEADY_S = 5.0
"""A watch that lasted so long was no failure to open one."""
REFUSED_AGAIN_S = 10.0
FORBIDDEN, MISSING, GONE, TOO_MANY = 403, 404, 410, 429


@dataclass(frozen=True, slots=True)
class Following:
    """``version``: where the next watch begins; empty: list first. ``refused``: why nothing is seen, for a person."""

    version: str = ""
    failures: int = 0  # in a row
    wait_s: float = 0.0  # before the next request
    refused: str = ""


def listed(following: Following, version: str) -> Following:
    """A watch still has to show that it can begin there: until then failures count on."""
    return Following(version, following.failures)


def moved(following: Following, version: str) -> Following:
    """An object arrived, which has ``version``."""
    return replace(following, version=version or following.version, failures=0, wait_s=0.0)


def ended(following: Following, lasted_s: float, jitter: float = 0.5) -> Following:
    """A watch ended without an error: after its time, or because the server, or something between us, ends them all.

    One that lasted goes on at once. Those that end as soon as they begin are opened ever more rarely. ``jitter``: 0..1.
    """
    if lasted_s >= STEADY_S:
        return replace(following, failures=0, wait_s=0.0)
    failures = following.failures + 1
    return replace(following, failures=failures, wait_s=_backoff_s(failures, jitter))


def failed(
    following: Following, status: int | None, message: str, *, retry_after_s: float | None = None, jitter: float = 0.5
) -> Following:
    """``status``: of the answer, or in an error event of the watch; None where there was no answer."""
    failures = following.failures + 1
    backoff_s = _backoff_s(failures, jitter)
    if status == GONE:
        # The list is a new beginning; should it be gone as well, we do not ask without a pause.
        return Following("", failures, 0.0 if failures == 1 else backoff_s)
    if status in (FORBIDDEN, MISSING):
        return Following("", failures, REFUSED_AGAIN_S * (0.5 + jitter), message)
    if status == TOO_MANY and retry_after_s is not None:
        return replace(following, failures=failures, wait_s=retry_after_s)
    return replace(following, failures=failures, wait_s=backoff_s)


def _backoff_s(failures: int, jitter: float) -> float:
    # The exponent is bounded too: an API server may be away for days.
    return min(FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 10), LONGEST_BACKOFF_S) * (0.5 + jitter)
