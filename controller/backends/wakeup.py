"""When the leader opens and closes its wake-up requests for one place. Pure.

One request that is open keeps the pod: it counts as running for Knative's autoscaler. Two limits end it from Knative's
side, both counted from its arrival at the activator, so that a cold start uses them up too:
``responseStartTimeoutSeconds`` until the worker's first byte, ``timeoutSeconds`` in all. After either the pod would be
scaled away while it loads. So the next request is opened before, and the one before it closed only when the next has
reached the worker: at no moment is there none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

LEAD_SHARE = 0.2
LONGEST_LEAD_S = 30.0
"""How long before a limit the next request is opened: a share of short limits, this much of long ones."""

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 10.0
STEADY_S = 5.0
"""A request that lasted so long was no failure to open one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds from a request's arrival: until its first byte, and in all."""

    response_start_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Request:
    id: int
    opened_s: float
    answered: bool = False  # the worker has it


@dataclass(frozen=True, slots=True)
class Holding:
    """``requests`` are open, oldest first. Times are of one monotonic clock."""

    requests: Sequence[Request] = ()
    next_id: int = 1
    failures: int = 0  # in a row
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Open:
    id: int


@dataclass(frozen=True, slots=True)
class Close:
    id: int


Step = Open | Close


def answered(holding: Holding, request: int) -> Holding:
    """The first byte of its answer has come: the worker holds it."""
    requests = tuple(replace(r, answered=True) if r.id == request else r for r in holding.requests)
    return replace(holding, requests=requests, failures=0, not_before_s=0.0)


def ended(holding: Holding, request: int, now_s: float, jitter: float = 0.5) -> Holding:
    """It is over, however: a limit, 502, 503, a connection lost, or the worker let go. ``jitter``: 0..1."""
    gone = next((r for r in holding.requests if r.id == request), None)
    if gone is None:
        return holding
    requests = tuple(r for r in holding.requests if r.id != request)
    if requests or now_s - gone.opened_s >= STEADY_S:
        return replace(holding, requests=requests)
    delay_s = min(FIRST_BACKOFF_S * 2**holding.failures, LONGEST_BACKOFF_S) * (0.5 + jitter)
    return replace(holding, requests=(), failures=holding.failures + 1, not_before_s=now_s + delay_s)


def step(holding: Holding, limits: Limits, *, wanted: bool, now_s: float) -> tuple[list[Step], Holding]:
    if not wanted:
        return [Close(r.id) for r in holding.requests], Holding(next_id=holding.next_id)
    steps: list[Step] = []
    requests = list(holding.requests)
    newest = requests[-1] if requests else None
    if newest is not None and newest.answered:
        steps += [Close(r.id) for r in requests[:-1]]
        requests = [newest]
    next_id = holding.next_id
    due_s = holding.not_before_s if newest is None else renew_s(newest, limits)
    if now_s >= due_s:
        steps.append(Open(next_id))
        requests.append(Request(next_id, now_s))
        next_id += 1
        # A cluster with longer limits than ours ends none of them: two are enough.
        steps += [Close(r.id) for r in requests[:-2]]
        requests = requests[-2:]
    return steps, replace(holding, requests=tuple(requests), next_id=next_id)


def due_s(holding: Holding, limits: Limits) -> float:
    """When the next :func:`step` opens a request, if nothing happens before."""
    return renew_s(holding.requests[-1], limits) if holding.requests else holding.not_before_s


def renew_s(request: Request, limits: Limits) -> float:
    """When the one after it is to be opened."""
    limit_s = limits.timeout_s if request.answered else min(limits.response_start_s, limits.timeout_s)
    return request.opened_s + limit_s - min(limit_s * LEAD_SHARE, LONGEST_LEAD_S)
