"""Which worker takes a new replica, and who makes room for it there.

The known need decides where it is known; the agent checks again before it allocates, and alone says that something
never fits, because it alone knows the arithmetic of weights, cache and reserve on its machine. Memory that others give
up counts only once it is measured free. What is on its way to somebody is claimed for the round: those who ask later
do not get it, however little they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from controller.capacity import Capacity, capacity
from controller.eviction import Asker, Choice, Leaving, Shortage, choose, words
from controller.residents import residents
from controller.round import Round
from rewarm.messages import CatalogueEntry, WorkerBeat
from rewarm.states import LIVE
from rewarm.units import format_bytes


class Kind(IntEnum):
    """What a worker offers, best first."""

    NOW = 0
    LATER = 1  # the room is there or on its way: loads that end, memory that comes
    EVICTION = 2
    FULL = 3


@dataclass(frozen=True, slots=True)
class Placement:
    worker: str | None
    obstacle: str = ""  # why there is none, for a person
    no_worker: bool = False  # nothing to place on at all, as opposed to no room
    home: str = ""  # the worker whose room it waits for
    leaving: tuple[Leaving, ...] = ()  # who is told to make room there
    never: bool = False  # as long as nobody changes the configuration


@dataclass(frozen=True, slots=True)
class Offer:
    beat: WorkerBeat
    kind: Kind
    obstacle: str = ""
    choice: Choice = field(default_factory=Choice)
    kept: tuple[str, ...] = ()  # models that never leave it

    @property
    def cost(self) -> tuple[bool, int, int, int]:
        """Of its eviction: something in use, the most important one, how many, the most recently used."""
        leaving = [one.resident for one in self.choice.leaving]
        return (
            any(one.in_use for one in self.choice.leaving),
            -min((one.priority for one in leaving), default=0),
            len(leaving),
            max((one.last_used_ms for one in leaving), default=0),
        )


def place(
    round_: Round, entry: CatalogueEntry, *, asker: Asker | None = None, avoid: frozenset[str] = frozenset()
) -> Placement:
    """The worker with room that holds the fewest replicas; workers in ``avoid`` only when there is no other.

    With ``asker``, where none has room: the one where making it costs least. Nothing is told to leave here.
    """
    candidates = [
        b
        for b in round_.view.workers.values()
        if not b.draining and not _cordoned(round_, b) and b.only in ("", entry.model)
    ]
    if not candidates:
        return Placement(None, "no worker is connected that takes new replicas", no_worker=True)
    taken = {replica.worker for replica in round_.group(entry.model) if not replica.ended}
    candidates = [b for b in candidates if not (b.only and b.worker in taken)]
    if not candidates:
        return Placement(None, f"each of the {len(taken)} places of {entry.model!r} has a replica")
    shut = round_.shut(entry.model)
    candidates = [b for b in candidates if b.worker not in shut] or candidates
    need = round_.need(entry)
    able = [b for b in candidates if b.only or need <= b.memory_budget_bytes]
    if not able:
        # Its agent refuses, with the arithmetic.
        return Placement(max(candidates, key=lambda b: (b.memory_budget_bytes, b.worker)).worker)
    offers = [offer(round_, b, entry.model, need, asker) for b in able]
    best = min(offers, key=lambda o: (o.kind, o.beat.worker in avoid, o.beat.absent, *_preference(round_, o)))
    if best.kind is Kind.NOW:
        return Placement(best.beat.worker)
    never = asker is not None and all(o.choice.never and o.kept for o in offers)
    return Placement(None, best.obstacle, home=best.beat.worker, leaving=best.choice.leaving, never=never)


def offer(round_: Round, beat: WorkerBeat, model: str, need: int, asker: Asker | None) -> Offer:
    """What one worker has for ``need`` bytes more of ``model``. ``asker`` None: without anybody's eviction."""
    if beat.only:
        return Offer(beat, Kind.NOW)  # a place is made for its model: whether that fits, its worker finds out
    rules, has = round_.memory.rules, capacity(round_, beat)
    now = _shortage(has, has.models, model, need - has.free_bytes, rules.max_models)
    if now == Shortage():
        if has.loads < rules.concurrent_loads:
            return Offer(beat, Kind.NOW)
    elif (later := _later(has, model, need, rules.max_models)) != Shortage():
        if has.loads < rules.concurrent_loads:
            return _full(round_, beat, asker, later, need, has)
    elif has.loads < rules.concurrent_loads:
        names = ", ".join(sorted(has.leaving)) or "what is leaving"
        return Offer(beat, Kind.LATER, f"waits for the memory of {names} on {beat.worker}")
    many = "a load is" if has.loads == 1 else f"{has.loads} loads are"
    return Offer(beat, Kind.LATER, f"waits its turn to load: {many} under way on {beat.worker}, as many as may")


def claim(round_: Round, worker: str, model: str, need: int, *, loads: bool) -> None:
    """For the rest of the round this room is given away."""
    round_.planned_bytes[worker] = round_.planned_bytes.get(worker, 0) + need
    round_.planned_models.setdefault(worker, set()).add(model)
    if loads:
        round_.planned_loads[worker] = round_.planned_loads.get(worker, 0) + 1


def _later(has: Capacity, model: str, need: int, max_models: int | None) -> Shortage:
    """What is still missing once everything that leaves has left."""
    missing = need - has.free_bytes - has.coming_bytes
    return _shortage(has, has.models - has.leaving, model, missing, max_models)


def _shortage(
    has: Capacity, models: frozenset[str], model: str, missing_bytes: int, max_models: int | None
) -> Shortage:
    over = 0 if max_models is None or model in models else len(models) + 1 - max_models
    return Shortage(max(0, missing_bytes), max(0, over))


def _full(round_: Round, beat: WorkerBeat, asker: Asker | None, shortage: Shortage, need: int, has: Capacity) -> Offer:
    room = _arithmetic(round_, beat, shortage, need, has)
    if asker is None:
        return Offer(beat, Kind.FULL, room)
    if not round_.memory.rules.evict:
        return Offer(beat, Kind.FULL, f"{room}; eviction is off, so it waits until something leaves by itself")
    if round_.holding:
        return Offer(beat, Kind.FULL, f"{room}; the leader has only just taken over and evicts nothing yet")
    found = residents(round_, beat, asker.model)
    choice = choose(found, shortage, asker, round_.memory.rules, round_.now_ms)
    if choice.leaving:
        return Offer(beat, Kind.EVICTION, f"waits for room: {words(choice.leaving)}", choice)
    kept = tuple(one.model for one in found if one.keeps)
    starting = sorted(round_.planned_models.get(beat.worker, ()))
    stays = "; ".join((*choice.stays, *(f"{name} is given it" for name in starting)))
    stays = stays or "nothing of this fleet holds it"
    return Offer(beat, Kind.FULL, f"waits for room: {room}; {stays}", choice, kept)


def _arithmetic(round_: Round, beat: WorkerBeat, shortage: Shortage, need: int, has: Capacity) -> str:
    if shortage.models:
        most = round_.memory.rules.max_models
        return f"{beat.worker} holds {len(has.models - has.leaving)} models, max_models is {most}"
    free = format_bytes(max(0, has.free_bytes + has.coming_bytes))
    budget = format_bytes(beat.memory_budget_bytes)
    return f"needs {format_bytes(need)}, {free} of {budget} is free on {beat.worker}"


def _preference(round_: Round, one: Offer) -> Sequence[object]:
    """Among offers of the same kind."""
    beat = one.beat
    if one.kind is Kind.EVICTION:
        return (*one.cost, beat.worker)
    live = sum(1 for r in beat.replicas if r.state in LIVE)
    held = live + round_.planned_count.get(beat.worker, 0)
    return (held, -capacity(round_, beat).free_bytes, 0, 0, beat.worker)


def _cordoned(round_: Round, beat: WorkerBeat) -> bool:
    return round_.cordons.get(beat.worker) == beat.boot
