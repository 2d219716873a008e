"""What follows when a replica fails: another attempt, a verdict that is remembered, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rewarm.messages import Failure, ModelPolicy
from rewarm.states import PERMANENT, FailureReason

LONGEST_BACKOFF_S = 60.0
WORKER_DEATHS = 3
"""So many workers in a row that die while they load a model are taken for its doing: one more failed load of it.

Fewer are nobody's fault that we know: machines are switched off, agents are killed and updated.
"""

LONGEST_REST = 64  # times failure_memory_s, between rounds of attempts that nobody asked for


class Kind(StrEnum):
    RETRY = "retry"
    FAIL = "fail"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Verdict:
    kind: Kind
    reason: str
    attempt: int = 1
    delay_ms: int = 0
    deaths: int = 0


def judge(
    failure: Failure,
    *,
    attempt: int,
    was_ready: bool,
    waiting: int,
    policy: ModelPolicy,
    roomier: bool,
    jitter: float,
    deaths: int = 0,
    crowded: bool = False,
    elsewhere: bool = False,
) -> Verdict:
    """``roomier``: another worker has a larger memory budget. ``jitter``: 0..1, spreads retries of several models.
    ``crowded``: other models of the fleet hold memory there that they may give up. ``elsewhere``: another worker may
    load it as well.

    ``deaths``: how many workers in a row, with this one, died while they loaded it; 0 where the load itself failed.
    """
    what = f"{failure.reason.value}: {failure.message}"
    if was_ready:
        if not waiting:
            return Verdict(Kind.GONE, f"the engine died and nobody waits ({what})")
        delay = backoff_ms(policy, 1, jitter)
        return Verdict(Kind.RETRY, f"the engine died while {waiting} wait ({what})", 1, delay)
    if deaths:
        return _worker_died(what, attempt, deaths, policy, jitter)
    if failure.reason is FailureReason.NO_ROOM and crowded:
        # No fault of the model: it waits until somebody leaves. What it needs is known from now on.
        return Verdict(Kind.RETRY, f"waits for room ({what})", attempt, backoff_ms(policy, 1, jitter))
    if failure.reason is FailureReason.NEVER_FITS and roomier and attempt < policy.load_attempts:
        return Verdict(Kind.RETRY, f"another worker has more memory ({what})", attempt + 1)
    if failure.reason in PERMANENT - {FailureReason.NEVER_FITS} and elsewhere and attempt < policy.load_attempts:
        return Verdict(Kind.RETRY, f"another worker may have what it needs ({what})", attempt + 1)
    if failure.reason in PERMANENT:
        return Verdict(Kind.FAIL, f"another attempt cannot help ({what})", attempt)
    if attempt >= policy.load_attempts:
        return Verdict(Kind.FAIL, f"attempt {attempt} of {policy.load_attempts} failed ({what})", attempt)
    return Verdict(
        Kind.RETRY,
        f"attempt {attempt} of {policy.load_attempts} failed ({what})",
        attempt + 1,
        backoff_ms(policy, attempt, jitter),
    )


def _worker_died(what: str, attempt: int, deaths: int, policy: ModelPolicy, jitter: float) -> Verdict:
    """The load is begun again, as the same attempt."""
    if deaths >= WORKER_DEATHS:
        return Verdict(Kind.FAIL, f"{deaths} workers in a row died while they loaded it ({what})", attempt)
    delay = backoff_ms(policy, deaths, jitter)
    return Verdict(Kind.RETRY, f"the worker died during the load ({what})", attempt, delay, deaths)


def backoff_ms(policy: ModelPolicy, attempt: int, jitter: float) -> int:
    """Doubles with every attempt, between a half and one and a half of the nominal delay."""
    nominal = min(policy.retry_backoff_s * 2 ** (attempt - 1), LONGEST_BACKOFF_S)
    return int(nominal * (0.5 + jitter) * 1000)


def rest_ms(policy: ModelPolicy, attempts: int) -> int:
    """How long a model that keeps failing is left alone when only ``min_replicas`` asks for it.

    A client's request tries again after ``failure_memory_s`` already; without this a broken pinned model would be
    respawned every half minute for ever.
    """
    rounds = max(attempts // max(policy.load_attempts, 1), 1)
    return int(policy.failure_memory_s * min(2 ** (rounds - 1), LONGEST_REST) * 1000)
