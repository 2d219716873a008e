"""Jobs that wait for a model which cannot serve them, or not in time: which of them may go on down their chains.

A request does that where it is held; a job has nobody but the leader. What is decided here is what happened to the
model and how all the others stand; where each job goes follows from its own chain, see :mod:`rewarm.fallback`.
"""

from __future__ import annotations

import math

from controller.actions import MoveJobs
from controller.round import Round
from rewarm.errors import ModelLoadFailed
from rewarm.fallback import Event, Failed, Outlook, Waits
from rewarm.messages import CatalogueEntry, ModelStatus
from rewarm.states import LOADING


def move_jobs(round_: Round, entry: CatalogueEntry, status: ModelStatus | None) -> None:
    """``status``: the failure that is remembered of the model, if any."""
    model = entry.model
    waiting = round_.view.waiting.get(model)
    if waiting is None or not waiting.jobs or not _in_a_chain(round_, model):
        return
    event = _event(round_, entry, status)
    if event is None:
        return
    outlooks = {other: outlook(round_, it) for other, it in round_.view.catalogue.items() if it.home != model}
    if all(one.obstacle for one in outlooks.values()):
        return
    what = "the model cannot be loaded" if isinstance(event, Failed) else "the model is not ready in time"
    round_.actions.append(MoveJobs(model, event, outlooks, round_.now_ms / 1000, f"{what}: jobs may go on"))


def _in_a_chain(round_: Round, model: str) -> bool:
    """Its adapters' jobs wait with its own."""
    catalogue = round_.view.catalogue
    names = {name for name, entry in catalogue.items() if entry.home == model}
    return any(
        entry.policy.fallback and (name in names or not names.isdisjoint(entry.policy.fallback))
        for name, entry in catalogue.items()
    )


def _event(round_: Round, entry: CatalogueEntry, status: ModelStatus | None) -> Event | None:
    serving = round_.serving(entry.model)
    if any(replica.ready for replica in serving):
        return None
    if not serving and status is not None and round_.now_ms < status.failed_until_ms:
        return Failed(ModelLoadFailed.code)
    if entry.policy.fallback_after_s is None:
        return None  # a job has all the time in the world
    return Waits(eta_s(round_, entry.model), entry.policy.fallback_after_s, math.inf)


def outlook(round_: Round, entry: CatalogueEntry) -> Outlook:
    """How a model stands for jobs, as far as the leader sees."""
    if entry.remote is not None:
        return Outlook(0.0)
    serving = round_.serving(entry.home)
    if any(replica.ready or replica.asleep for replica in serving):
        return Outlook(0.0)
    status = round_.view.statuses.get(entry.home)
    if not serving and status is not None and status.failure is not None and round_.now_ms < status.failed_until_ms:
        return Outlook(obstacle=f"it could not be loaded ({status.failure.reason.value})")
    return Outlook(eta_s(round_, entry.home))


def eta_s(round_: Round, model: str) -> float | None:
    """Seconds until a replica of it is ready, by the load that is furthest; None while nobody knows."""
    found: list[float] = []
    for replica in round_.group(model):
        if replica.lost or replica.state not in LOADING:
            continue
        progress = round_.view.progress.get(replica.id) or (replica.report.progress if replica.report else None)
        if progress is not None and progress.eta_s is not None:
            age_s = max(0, round_.now_ms - progress.at_ms) / 1000 if progress.at_ms else 0.0
            found.append(max(0.0, progress.eta_s - age_s))
    return min(found, default=None)
