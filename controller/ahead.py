"""``min_asleep``: replicas that are loaded ahead, and left to sleep, so that a model's first request only wakes one.

They take what all who ask have left: nobody leaves for such a load, and it stops at once for whoever waits for its
room. A model of which none comes to sleep is not loaded again and again: the floor *rests*, longer after each in a row.
Most often that is the first load of a model, which makes the snapshot that the next one sleeps from. One that slept and
had to stop for another model takes no room from which that one could not wake.
"""

from __future__ import annotations

from dataclasses import replace

from controller.capacity import stop_frees
from controller.needs import minus
from controller.placement import Placement, place
from controller.round import Round
from controller.state import Needs, Replica
from rewarm.messages import CatalogueEntry
from rewarm.units import format_duration

LONGEST_REST = 2**11
"""Times ``failure_memory``, whose default makes it 17 hours."""


def load(round_: Round, entry: CatalogueEntry, *, failing: bool) -> None:
    """Start what is missing, or say why not. ``failing``: its last loads failed, and it rests for that."""
    model, memory = entry.model, round_.of(entry.model)
    missing = min(entry.policy.min_asleep, entry.policy.max_replicas) - len(round_.serving(model))
    if missing <= 0 or failing or round_.holding:
        return
    if round_.waiting(model) or memory.pending is not None:
        return  # whoever waits has it loaded
    if any(replica.spec_hash != entry.spec_hash for replica in round_.serving(model)):
        return
    rest = rest_ms(entry, memory.vain)
    if memory.vain and round_.now_ms < memory.vain_ms + rest:
        last = "its last load" if memory.vain == 1 else f"each of its last {memory.vain} loads"
        round_.explain(model, f"min_asleep rests for {format_duration(rest / 1000)}: {last} came to no sleep")
        return
    for _ in range(missing):
        spot = _place(round_, entry, memory.yielded_to)
        if spot.worker is None:
            round_.explain(model, f"min_asleep: {spot.obstacle}", spot.home)
            return
        reason = f"min_asleep is {entry.policy.min_asleep}"
        round_.start(entry, spot.worker, reason, needs=spot.needs, ahead=True)


def rest_ms(entry: CatalogueEntry, vain: int) -> int:
    """After so many in a row that never slept."""
    return int(entry.policy.failure_memory_s * min(2 ** (max(vain, 1) - 1), LONGEST_REST) * 1000)


def learn(round_: Round, entry: CatalogueEntry) -> None:
    """One that sleeps shows that the next one can."""
    since_ms = round_.of(entry.model).vain_ms
    if any(r.asleep and r.report is not None and r.report.ready_at_ms > since_ms for r in round_.group(entry.model)):
        forgive(round_, entry.model)


def forgive(round_: Round, model: str) -> None:
    """What came of earlier loads says nothing of the next one."""
    memory = round_.of(model)
    if memory.vain:
        round_.remember(model, replace(memory, vain=0))


def in_vain(round_: Round, entry: CatalogueEntry) -> None:
    """A replica is gone, or goes, that never slept."""
    memory = round_.of(entry.model)
    if entry.policy.min_asleep:
        round_.remember(entry.model, replace(memory, vain=memory.vain + 1, vain_ms=round_.now_ms))


def yielded(round_: Round, replica: Replica, asker: str) -> None:
    """It stops because ``asker`` needs its room."""
    entry = round_.view.catalogue.get(replica.model)
    if entry is None or not entry.policy.min_asleep:
        return
    if replica.asleep:
        round_.remember(entry.model, replace(round_.of(entry.model), yielded_to=asker))
    else:
        in_vain(round_, entry)


def _place(round_: Round, entry: CatalogueEntry, yielded_to: str) -> Placement:
    """Without anybody's eviction, and beside ``yielded_to`` awake: what it needs to wake is counted as free."""
    wakes = [(r.worker, _wake_takes(r)) for r in round_.group(yielded_to) if r.asleep]
    for worker, needs in wakes:
        round_.give_away(worker, yielded_to, needs)
    spot = place(round_, entry)
    for worker, needs in wakes:
        round_.give_away(worker, yielded_to, {device: -size for device, size in needs.items()})
    return spot


def _wake_takes(replica: Replica) -> Needs:
    return {} if replica.report is None else minus(replica.report.needs, stop_frees(replica))
