"""What follows a try: told, again later, or given up. Pure.

Failed tries are repeated after 5 s, then twice as long each time, at most an hour, give or take a fifth: with the
usual 20 tries within 24 hours a receiver may be away for most of a day.
"""

from __future__ import annotations

import email.utils
from dataclasses import dataclass
from datetime import timedelta

FIRST_DELAY_S = 5.0
MAX_DELAY_S = 3600.0
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Answer:
    """How one try ended. ``status`` is None when no answer came; ``retry_after`` the header as it came."""

    status: int | None
    error: str = ""  # for a person
    retry_after: str | None = None
    hopeless: bool = False  # not worth another try whatever the answer was


@dataclass(frozen=True, slots=True)
class Bounds:
    max_tries: int = 20
    max_age: timedelta = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Told:
    pass


@dataclass(frozen=True, slots=True)
class Again:
    delay: timedelta
    error: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    error: str


def follow(
    answer: Answer, tries: int, age_s: float, now_s: float, luck: float, bounds: Bounds
) -> Told | Again | GivenUp:
    """``tries`` counts the one that just ended; ``age_s`` since the event; ``luck`` is 0..1, for the jitter;
    ``now_s`` (since the epoch) reads a Retry-After that is a date."""
    if answer.status is not None and 200 <= answer.status < 300:
        return Told()
    error = _words(answer)
    if answer.status == 410:
        return GivenUp(f"{error}: the receiver wants no more")
    if answer.hopeless:
        return GivenUp(error)
    if tries >= bounds.max_tries:
        return GivenUp(f"{error}; given up after {tries} tries")
    delay_s = backoff_s(tries, luck)
    asked_s = _retry_after_s(answer.retry_after, now_s) if answer.status in (429, 503) else None
    if asked_s is not None:
        delay_s = max(delay_s, asked_s)
    if age_s + delay_s > bounds.max_age.total_seconds():
        return GivenUp(f"{error}; given up after {timedelta(seconds=round(age_s))}")
    return Again(timedelta(seconds=delay_s), error)


def backoff_s(failures: int, luck: float) -> float:
    """After the n-th failure in a row, n ≥ 1."""
    base = min(FIRST_DELAY_S * 2.0 ** min(failures - 1, 30), MAX_DELAY_S)
    return float(base * (1 + JITTER * (2 * luck - 1)))


def _words(answer: Answer) -> str:
    if answer.status is None:
        return answer.error
    if 300 <= answer.status < 400:
        return f"HTTP {answer.status}: redirects are not followed"
    return f"HTTP {answer.status}"


def _retry_after_s(text: str | None, now_s: float) -> float | None:
    """Seconds or a date, as HTTP has it; None for nothing or nonsense."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return None
