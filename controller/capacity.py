"""What a worker has left on each device: measured free, coming free; and what counts against its limits."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from controller.needs import RAM, less, minus, plus, roomiest, ways
from controller.round import Round
from controller.state import Needs, Replica
from rewarm.messages import WorkerBeat
from rewarm.states import ENDED, LIVE

SLEEP_LEAVES = 0.25
"""Share of its need that a sleeping replica is taken to keep, until one of its model has been seen asleep."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """By device. ``free``: measured by the agent, less what this round has given away. ``coming``: of those that
    leave; not free before it was measured. ``models``: those with a replica there, leaving ones included."""

    free: Needs
    coming: Needs
    models: frozenset[str]
    leaving: frozenset[str]  # models of which nothing stays
    loads: int


def capacity(round_: Round, beat: WorkerBeat) -> Capacity:
    here = on_worker(round_, beat.worker)
    staying = {r.model for r in here if not leaves(r)}
    planned = round_.planned_models.get(beat.worker, set())
    models = {r.model for r in here} | planned
    return Capacity(
        free=free(round_, beat),
        coming=plus(*(coming(round_, r) for r in here)),
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


def free(round_: Round, beat: WorkerBeat) -> Needs:
    """What the worker reports, less what is wanted of it and not yet in its ledgers. Below zero where too much is."""
    # Between its agent's first word of a replica and its admission there are moments, and a download may be.
    counted = {r.replica for r in beat.replicas if r.needs or r.waits_for_room or r.state in ENDED}
    out = less({device.id: device.free_bytes for device in beat.devices}, round_.planned_bytes.get(beat.worker, {}))
    for want in round_.view.wants.get(beat.worker, {}).values():
        entry = round_.view.catalogue.get(want.model)
        if want.replica not in counted and entry is not None:
            wanted = msgspec.structs.replace(entry, spec=want.spec)
            out = less(out, roomiest(ways(round_, wanted, beat), out))
    return out


def leaves(replica: Replica) -> bool:
    """It stops, or falls asleep: somebody else may count on its memory, once that is measured free."""
    return replica.stop_wanted or replica.draining or replica.state not in LIVE


def coming(round_: Round, replica: Replica) -> Needs:
    if leaves(replica):
        return stop_frees(replica)
    if replica.rest_wanted and not replica.asleep:
        return sleep_frees(round_, replica)
    return {}


def stop_frees(replica: Replica) -> Needs:
    """As its agent's ledgers count it: asleep, what its processes still hold."""
    report = replica.report
    if report is None:
        return {}
    if not replica.asleep:
        return report.needs
    main = _main(report.needs)
    return {
        device: min(size, report.memory_bytes // len(main)) if device in main else size
        for device, size in report.needs.items()
    }


def sleep_frees(round_: Round, replica: Replica) -> Needs:
    """Nothing where it cannot sleep, or does."""
    report = replica.report
    if report is None or not report.can_sleep or not replica.ready or not report.needs:
        return {}
    main = _main(report.needs)
    asleep = round_.of(replica.model).asleep_bytes
    keeps = asleep if asleep is not None else int(sum(report.needs[device] for device in main) * SLEEP_LEAVES)
    return minus({device: report.needs[device] for device in main}, dict.fromkeys(main, keeps // len(main)))


def _main(needs: Needs) -> list[str]:
    """The devices that its memory is measured on: its GPUs, or RAM where it has none."""
    return [device for device in needs if device != RAM] or list(needs)


def _holds(replica: Replica) -> bool:
    return replica.report is not None and bool(replica.report.needs)


def _loads(round_: Round, replica: Replica) -> bool:
    """One that waits for room, or out a backoff, reads nothing yet."""
    if replica.want is None or not replica.loading or leaves(replica) or replica.want.not_before_ms > round_.now_ms:
        return False
    return replica.report is None or not replica.report.waits_for_room
