"""The breaker of one model on one worker: closed → open after failed loads → half-open for one probe. Pure.

A model that fails on one machine may load on another: a file is missing there, a driver is broken, a device is ill.
While a breaker is open, placement passes its worker over. Then one load may go there again: if it becomes ready the
breaker closes, if it fails it opens for twice as long. Where all of a model's breakers are open, the model as a whole
has failed for a while (:class:`rewarm.messages.ModelStatus`), and what tries after that may go anywhere.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from rewarm.messages import Failure, ModelPolicy, ModelStatus, PlaceStatus
from rewarm.states import PERMANENT, FailureReason

LONGEST_OPEN = 64  # times failure_memory_s

BLAMELESS: frozenset[FailureReason] = frozenset((FailureReason.NO_ROOM, FailureReason.AGENT_LOST))
"""Says nothing of whether the model can load there."""


def failed(
    status: ModelStatus | None,
    model: str,
    worker: str,
    failure: Failure,
    policy: ModelPolicy,
    now_ms: int,
    workers: Collection[str],
) -> ModelStatus:
    """After a failed load of ``model`` on ``worker``. ``workers``: those that are there; of others nothing is kept."""
    status = status or ModelStatus(model=model)
    if failure.reason in BLAMELESS:
        return status
    before = next((place for place in status.places if place.worker == worker), PlaceStatus(worker=worker))
    failures = before.failures + 1
    too_many = failures - policy.load_attempts
    open_until_ms = 0
    if too_many >= 0 or failure.reason in PERMANENT:
        times = min(2 ** max(0, too_many), LONGEST_OPEN)
        open_until_ms = now_ms + int(policy.failure_memory_s * times * 1000)
    after = PlaceStatus(worker=worker, failures=failures, open_until_ms=open_until_ms, failure=failure)
    others = tuple(place for place in status.places if place.worker != worker and place.worker in workers)
    return msgspec.structs.replace(status, places=(*others, after))


def ready(status: ModelStatus, worker: str, ready_at_ms: int) -> ModelStatus:
    """A load on ``worker`` became ready: its breaker is closed, unless another one failed there since."""
    left = tuple(p for p in status.places if p.worker != worker or (p.failure and p.failure.at_ms >= ready_at_ms))
    return msgspec.structs.replace(status, places=left)


def shut(status: ModelStatus | None, probed: Collection[str], now_ms: int) -> frozenset[str]:
    """Workers that get no load of the model now. ``probed``: those where one is under way already."""
    if status is None:
        return frozenset()
    return frozenset(
        place.worker
        for place in status.places
        if place.open_until_ms and (now_ms < place.open_until_ms or place.worker in probed)
    )
