"""The canary of the cold path: a cold model is woken while nobody needs anything, to see that it can be.

One at a time in the fleet, and only where it fits beside what is there: nobody sleeps or stops for it. Ready (verified
as ever) it goes again at once, unless somebody has asked for it meanwhile. One that fails is remembered as failed until
the next try, so that requests go to a fallback instead of waiting for a load that is known to fail.

A wake that somebody asked for says the same, and counts.
"""

from __future__ import annotations

from controller.actions import SetCanary
from controller.capacity import on_worker
from controller.placement import place
from controller.round import Round
from controller.state import StopReason
from rewarm.messages import Canary, CatalogueEntry, ModelStatus
from rewarm.states import LIVE

QUIET_MS = 60_000
"""Nobody has asked for anything for so long."""

AGAIN_MS = 600_000
"""After a failure: doubled for each one in a row, and no longer than ``canary_every``."""

LOST_MS = 60_000
"""A try of which nothing is left after so long, no replica and no failure, has told nothing."""


def look(round_: Round) -> None:
    """After everything else was decided: what is free then is really free."""
    here = [entry for entry in round_.view.catalogue.values() if entry.placed]
    for entry in here:
        _note(round_, entry)
    if not _quiet(round_):
        return
    for entry in sorted(here, key=lambda one: (_last_ms(round_, one.model), one.model)):
        if _due(round_, entry) and _begin(round_, entry):
            return


def failed_until_ms(round_: Round, model: str, until_ms: int) -> int:
    """How long the failure of a load is remembered: that of a canary until its next try, and a while beyond."""
    canary = round_.view.canaries.get(model)
    entry = round_.view.catalogue.get(model)
    if canary is None or canary.state != "running" or entry is None:
        return until_ms
    return max(until_ms, round_.now_ms + again_ms(entry, canary.failures + 1) + 10 * QUIET_MS)


def again_ms(entry: CatalogueEntry, failures: int) -> int:
    """From a failure to the next try."""
    every_s = entry.policy.canary_every_s or 0.0
    return min(AGAIN_MS << min(failures - 1, 20), int(every_s * 1000))


def _note(round_: Round, entry: CatalogueEntry) -> None:
    """What has become of the last try, or of a wake that somebody asked for."""
    model, canary = entry.model, round_.view.canaries.get(entry.model)
    ready_ms = max((r.report.ready_at_ms for r in round_.serving(model) if r.ready and r.report is not None), default=0)
    if canary is None or canary.state != "running":
        known_ms = 0 if canary is None else canary.at_ms
        if entry.policy.canary_every_s and ready_ms > known_ms:
            _set(round_, Canary(model=model, state="passed", at_ms=ready_ms), "somebody woke it")
        return
    status = round_.status(model)
    if ready_ms >= canary.at_ms:
        _set(round_, Canary(model=model, state="passed", at_ms=round_.now_ms), "the canary is ready")
        _let_go(round_, entry, canary)
    elif round_.serving(model):
        return
    elif status is not None and status.failure is not None and status.failure.at_ms >= canary.at_ms:
        _failed(round_, canary, status)
    elif round_.now_ms - canary.at_ms > LOST_MS:
        lost = Canary(model=model, state="unknown", at_ms=round_.now_ms, failures=canary.failures)
        _set(round_, lost, "nothing is left of the canary, and no failure")


def _failed(round_: Round, canary: Canary, status: ModelStatus) -> None:
    failure = status.failure
    words = "" if failure is None else f"{failure.reason.value}: {failure.message}"
    failures = canary.failures + 1
    told = Canary(model=canary.model, state="failed", at_ms=round_.now_ms, failures=failures, message=words)
    _set(round_, told, f"the canary failed ({words})")


def _let_go(round_: Round, entry: CatalogueEntry, canary: Canary) -> None:
    asked_ms = round_.view.demand_ms.get(entry.model, 0)
    kept = entry.policy.min_replicas or entry.policy.min_asleep
    if asked_ms >= canary.at_ms or round_.waiting(entry.model) or kept:
        return
    for replica in round_.serving(entry.model):
        if replica.ready and not replica.busy:
            round_.stop(replica, StopReason.IDLE, "the canary has been ready: nobody asked for it", if_idle=True)


def _quiet(round_: Round) -> bool:
    """Nothing waits, loads, runs or is owed, and nobody asked for anything lately."""
    view = round_.view
    if round_.now_ms < round_.memory.hold_until_ms + QUIET_MS:
        return False  # a new leader does not know yet what was before it
    if any(canary.state == "running" for canary in view.canaries.values()):
        return False
    if any(isinstance(action, SetCanary) for action in round_.actions):
        return False  # first see what that changes
    if any(at > round_.now_ms - QUIET_MS for at in view.demand_ms.values()):
        return False
    for model in view.catalogue:
        if round_.waiting(model) or round_.of(model).pending is not None:
            return False
        if any(r.loading or r.busy for r in round_.group(model) if not r.ended and not r.lost):
            return False
    return True


def _due(round_: Round, entry: CatalogueEntry) -> bool:
    every_s = entry.policy.canary_every_s
    if not every_s or round_.serving(entry.model) or entry.policy.min_replicas:
        return False
    canary = round_.view.canaries.get(entry.model)
    if canary is None:
        return True
    passed = canary.state == "passed"
    wait_ms = int(every_s * 1000) if passed else again_ms(entry, max(1, canary.failures))
    return round_.now_ms >= canary.at_ms + wait_ms


def _begin(round_: Round, entry: CatalogueEntry) -> bool:
    """False where it does not fit, or nobody knows whether it would and others are there."""
    spot = place(round_, entry)
    if spot.worker is None or not spot.fits:
        return False
    beat = round_.view.workers[spot.worker]
    need = round_.need(entry)
    if not beat.only and not need and any(r.state in LIVE for r in on_worker(round_, spot.worker)):
        return False
    canary = round_.view.canaries.get(entry.model)
    failures = 0 if canary is None else canary.failures
    begun = Canary(model=entry.model, state="running", at_ms=round_.now_ms, failures=failures)
    _set(round_, begun, "the fleet is quiet")
    round_.start(entry, spot.worker, "canary: to see that it can be woken", needs=spot.needs)
    return True


def _set(round_: Round, canary: Canary, reason: str) -> None:
    round_.actions.append(SetCanary(canary, reason))


def _last_ms(round_: Round, model: str) -> int:
    canary = round_.view.canaries.get(model)
    return 0 if canary is None else canary.at_ms
