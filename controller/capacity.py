"""What a worker has left: measured free, coming free, and counted against its limits."""

from __future__ import annotations

from dataclasses import dataclass

from controller.round import Round
from controller.state import Replica
from rewarm.messages import WorkerBeat
from rewarm.states import LIVE

SLEEP_LEAVES = 0.25
"""Share of its need that a sleeping replica is taken to keep, until one of its model has been seen asleep."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """``free_bytes``: measured by the agent, less what this round has given away. ``coming_bytes``: of those that
    leave; not free before it was measured. ``models``: those with a replica there, leaving ones included."""

    free_bytes: int
    coming_bytes: int
    models: frozenset[str]
    leaving: frozenset[str]  # models of which nothing stays
    loads: int


def capacity(round_: Round, beat: WorkerBeat) -> Capacity:
    here = on_worker(round_, beat.worker)
    staying = {r.model for r in here if not leaves(r)}
    planned = round_.planned_models.get(beat.worker, set())
    models = {r.model for r in here} | planned
    return Capacity(
        free_bytes=free_bytes(round_, beat),
        coming_bytes=sum(coming_bytes(round_, r) for r in here),
        models=frozenset(models),
        leaving=frozenset(models - staying - planned),
        loads=sum(_loads(round_, r) for r in here) + round_.planned_loads.get(beat.worker, 0),
    )


def on_worker(round_: Round, worker: str) -> list[Replica]:
    """Those that live or still hold memory there; what this round has started is counted as planned."""
    return [
        r
        for group in round_.replicas.values()
        for r in group
        if r.worker == worker and r.id not in round_.started and (r.state in LIVE or _holds(r))
    ]


def free_bytes(round_: Round, beat: WorkerBeat) -> int:
    """What the worker reports, less what is wanted of it and not yet in its ledger."""
    reported = {r.replica for r in beat.replicas}
    free = beat.memory_free_bytes - round_.planned_bytes.get(beat.worker, 0)
    for want in round_.view.wants.get(beat.worker, {}).values():
        if want.replica not in reported:
            entry = round_.view.catalogue.get(want.model)
            free -= want.spec.memory_bytes or (round_.need(entry) if entry is not None else 0)
    return free


def leaves(replica: Replica) -> bool:
    """It stops, or falls asleep: somebody else may count on its memory, once that is measured free."""
    return replica.stop_wanted or replica.draining or replica.state not in LIVE


def coming_bytes(round_: Round, replica: Replica) -> int:
    if leaves(replica):
        return stop_frees_bytes(replica)
    if replica.rest_wanted and not replica.asleep:
        return sleep_frees_bytes(round_, replica)
    return 0


def stop_frees_bytes(replica: Replica) -> int:
    """As its agent's ledger counts it: asleep, what its processes still hold."""
    report = replica.report
    if report is None:
        return 0
    return min(report.need_bytes, report.memory_bytes) if replica.asleep else report.need_bytes


def sleep_frees_bytes(round_: Round, replica: Replica) -> int:
    """0 where it cannot sleep, or does."""
    report = replica.report
    if report is None or not report.can_sleep or not replica.ready:
        return 0
    asleep = round_.of(replica.model).asleep_bytes
    left = asleep if asleep is not None else int(report.need_bytes * SLEEP_LEAVES)
    return max(0, report.need_bytes - left)


def _holds(replica: Replica) -> bool:
    return replica.report is not None and replica.report.need_bytes > 0


def _loads(round_: Round, replica: Replica) -> bool:
    """One that waits for room, or out a backoff, reads nothing yet."""
    if replica.want is None or not replica.loading or leaves(replica) or replica.want.not_before_ms > round_.now_ms:
        return False
    return replica.report is None or not replica.report.waits_for_room
