"""Places: workers that are known before they are there. Pure.

A place is where one replica of one model may run in a cluster: a Knative Service or a Deployment of at most one pod.
Its worker has its name. While no worker speaks under that name, or only one whose pod is on its way out, the leader
answers for the place with a heartbeat of its own (``WorkerBeat.absent``), made here from what the backend saw of the
cluster. So a replica that is wanted at a place without a pod is one that loads, with progress and with failures of its
own, and everything else of a decision is as with any worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from fleet import FleetView
from rewarm import pending
from rewarm.messages import Failure, Progress, ReplicaReport, Want, WorkerBeat
from rewarm.states import FailureReason, ReplicaState
from rewarm.units import format_duration


@dataclass(frozen=True, slots=True)
class Seen:
    """What the cluster says of a place that is wanted, in words for a person. Nothing is seen of one that is not."""

    message: str = "asked for"
    reason: FailureReason | None = None  # why no pod will come of it as things are
    certain: bool = False  # of `reason`: whoever could change that has said that it will not
    waits_for_room: bool = False  # other places hold what its pod needs
    leaving: frozenset[str] = frozenset()  # addresses of its pods that are being deleted
    unchanged_s: float = 0.0  # how long it has been like this


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    model: str
    seen: Seen = field(default_factory=Seen)
    stall_s: float = 600.0  # without any change in what is seen: no pod comes any more
    unschedulable_s: float = 1.0  # a node may take the pod, or be added for it, within so long
    usual: pending.Usual | None = None  # what its pods have taken; None where none has come yet


def with_places(
    view: FleetView, places: Mapping[str, Place], *, holding: bool
) -> tuple[FleetView, dict[str, WorkerBeat]]:
    """``view`` with a heartbeat for every place that has no worker, and these heartbeats.

    ``holding``: absence proves nothing now. A place whose worker was there is then left as it looks: unseen.
    """
    absent: dict[str, WorkerBeat] = {}
    former = dict(view.former)
    for name, place in places.items():
        beat = view.workers.get(name)
        wants = view.wants.get(name, {})
        if beat is not None:
            if not (beat.draining or beat.host in place.seen.leaving):
                continue
            former[name] = msgspec.structs.replace(beat, draining=True)
        elif holding and any(want.boot for want in wants.values()):
            continue
        absent[name] = _answer(place, wants, view.now_ms, leaving="" if beat is None else beat.boot)
    if not absent:
        return view, absent
    return replace(view, workers={**view.workers, **absent}, former=former), absent


def needed(view: FleetView, places: Mapping[str, Place]) -> frozenset[str]:
    """Places that are to have a pod: something is wanted there, be it only that it ends in good order."""
    return frozenset(
        name
        for name in places
        if any(want.not_before_ms <= view.now_ms or want.boot for want in view.wants.get(name, {}).values())
    )


def _answer(place: Place, wants: Mapping[str, Want], now_ms: int, leaving: str) -> WorkerBeat:
    """``leaving``: the boot of the pod that is on its way out. Wants of a run that is over are not answered for."""
    return WorkerBeat(
        worker=place.name,
        boot="",
        host="",
        pid=0,
        replicas=tuple(_report(place, want, now_ms) for want in wants.values() if not want.boot),
        only=place.model,
        absent=True,
        leaving=leaving,
        at_ms=now_ms,
    )


def _report(place: Place, want: Want, now_ms: int) -> ReplicaReport:
    base = ReplicaReport(
        replica=want.replica,
        model=want.model,
        spec_hash=want.spec_hash,
        state=ReplicaState.POD_PENDING,
        term=want.term,
        attempt=want.attempt,
        cause=want.reason,
    )
    if want.state is not ReplicaState.READY:
        return msgspec.structs.replace(base, state=ReplicaState.STOPPED, reason="no pod had come")
    if want.not_before_ms > now_ms:
        return msgspec.structs.replace(base, progress=_progress(want, "waits before the next attempt"))
    seen = place.seen
    reason, message = seen.reason, seen.message
    if reason is FailureReason.UNSCHEDULABLE and not seen.certain and seen.unchanged_s < place.unschedulable_s:
        reason = None
    if reason is None and not seen.waits_for_room and seen.unchanged_s >= place.stall_s:
        reason = FailureReason.STALLED
        message = f"no pod came, and nothing changed for {format_duration(seen.unchanged_s)}: {message}"
    if reason is None:
        return msgspec.structs.replace(
            base, progress=_progress(want, message, place.usual, now_ms), waits_for_room=seen.waits_for_room
        )
    failure = Failure(
        reason=reason, message=f"{place.name}: {message}", phase=ReplicaState.POD_PENDING, attempt=want.attempt
    )
    return msgspec.structs.replace(base, state=ReplicaState.FAILED, failure=failure)


def _progress(want: Want, message: str, usual: pending.Usual | None = None, now_ms: int = 0) -> Progress:
    """Its worker's own, which starts from 1, comes after it."""
    progress = Progress(
        model=want.model,
        replica=want.replica,
        phase=ReplicaState.POD_PENDING,
        attempt=want.attempt,
        message=message,
    )
    began_ms = max(want.wanted_ms, want.not_before_ms)
    if usual is None or not want.wanted_ms:
        return progress
    told = pending.outlook(usual, (now_ms - began_ms) / 1000)
    return msgspec.structs.replace(
        progress,
        phase_fraction=told.phase_fraction,
        fraction=told.fraction,
        eta_s=told.eta_s,
        at_ms=began_ms + round(told.at_s * 1000),
    )
