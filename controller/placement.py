"""Which worker takes a new replica, on which of its devices, and who makes room for it there.

Each way in which it could lie on a worker (:mod:`controller.needs`) is an offer of its own. The known need decides
where it is known; the agent checks again before it allocates, and alone says that something never fits, because it
alone knows the arithmetic of weights, cache and reserve on its machine. Memory that others give up counts only once it
is measured free. What is on its way to somebody is claimed for the round: those who ask later do not get it, however
little they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from controller.capacity import Capacity, capacity
from controller.eviction import Asker, Choice, Leaving, Shortage, choose, concerned, words
from controller.needs import label, left, minus, plus, reach, ways
from controller.residents import residents
from controller.round import Round
from controller.state import Needs
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
    needs: Needs = field(default_factory=dict)  # there, or where it waits
    fits: bool = True  # False: no budget is large enough, and its agent is to say so
    leaving: tuple[Leaving, ...] = ()  # who is told to make room there
    never: bool = False  # as long as nobody changes the configuration


@dataclass(frozen=True, slots=True)
class Offer:
    beat: WorkerBeat
    kind: Kind
    needs: Needs  # on which of its devices
    has: Capacity
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
    able = [(beat, some) for beat in candidates if (some := ways(round_, entry, beat))]
    if not able:
        # Its agent refuses, with the arithmetic.
        return Placement(max(candidates, key=lambda b: (reach(round_, entry, b), b.worker)).worker, fits=False)
    offers = [one for beat, some in able for one in offers_of(round_, beat, entry.model, some, asker)]
    best = min(offers, key=lambda o: (o.kind, o.beat.worker in avoid, o.beat.absent, *_preference(round_, o)))
    if best.kind is Kind.NOW:
        return Placement(best.beat.worker, needs=best.needs)
    never = asker is not None and all(o.choice.never and o.kept for o in offers)
    home, leaving = best.beat.worker, best.choice.leaving
    return Placement(None, best.obstacle, home=home, needs=best.needs, leaving=leaving, never=never)


def best_of(round_: Round, beat: WorkerBeat, model: str, some: Sequence[Needs], asker: Asker | None) -> Offer:
    """The best offer of one worker for a replica that is there already."""
    return min(
        offers_of(round_, beat, model, some or [{}], asker), key=lambda one: (one.kind, *_preference(round_, one))
    )


def offers_of(round_: Round, beat: WorkerBeat, model: str, some: Sequence[Needs], asker: Asker | None) -> list[Offer]:
    """What one worker has for one more of ``model``, for each of the ways in which it could lie there. ``asker`` None:
    without anybody's eviction."""
    has = capacity(round_, beat)
    return [_offer(round_, beat, has, model, needs, asker) for needs in some]


def _offer(round_: Round, beat: WorkerBeat, has: Capacity, model: str, needs: Needs, asker: Asker | None) -> Offer:
    if beat.only:
        return Offer(beat, Kind.NOW, needs, has)  # made for its model: whether that fits, its worker finds out
    rules = round_.memory.rules
    now = _shortage(has.models, model, minus(needs, has.free), rules.max_models)
    if now == Shortage():
        if has.loads < rules.concurrent_loads:
            return Offer(beat, Kind.NOW, needs, has)
    elif (later := _later(has, model, needs, rules.max_models)) != Shortage():
        if has.loads < rules.concurrent_loads:
            return _full(round_, beat, asker, later, needs, has)
    elif has.loads < rules.concurrent_loads:
        names = ", ".join(sorted(has.leaving)) or "what is leaving"
        return Offer(beat, Kind.LATER, needs, has, f"waits for the memory of {names} on {beat.worker}")
    many = "a load is" if has.loads == 1 else f"{has.loads} loads are"
    text = f"waits its turn to load: {many} under way on {beat.worker}, as many as may"
    return Offer(beat, Kind.LATER, needs, has, text)


def claim(round_: Round, worker: str, model: str, needs: Needs, *, loads: bool) -> None:
    """For the rest of the round this room is given away."""
    round_.give_away(worker, model, needs)
    if loads:
        round_.planned_loads[worker] = round_.planned_loads.get(worker, 0) + 1


def _later(has: Capacity, model: str, needs: Needs, max_models: int | None) -> Shortage:
    """What is still missing once everything that leaves has left."""
    return _shortage(has.models - has.leaving, model, minus(needs, plus(has.free, has.coming)), max_models)


def _shortage(models: frozenset[str], model: str, missing: Needs, max_models: int | None) -> Shortage:
    over = 0 if max_models is None or model in models else len(models) + 1 - max_models
    return Shortage(missing, max(0, over))


def _full(
    round_: Round, beat: WorkerBeat, asker: Asker | None, shortage: Shortage, needs: Needs, has: Capacity
) -> Offer:
    def full(obstacle: str, choice: Choice | None = None, kept: tuple[str, ...] = ()) -> Offer:
        return Offer(beat, Kind.FULL, needs, has, obstacle, choice or Choice(), kept)

    room = _arithmetic(round_, beat, shortage, needs, has)
    if asker is None:
        return full(room)
    if not round_.memory.rules.evict:
        return full(f"{room}; eviction is off, so it waits until something leaves by itself")
    if round_.holding:
        return full(f"{room}; the leader has only just taken over and evicts nothing yet")
    found = concerned(residents(round_, beat, asker.model), shortage)
    choice = choose(found, shortage, asker, round_.memory.rules, round_.now_ms)
    if choice.leaving:
        return Offer(beat, Kind.EVICTION, needs, has, f"waits for room: {words(choice.leaving)}", choice)
    starting = sorted(round_.planned_models.get(beat.worker, ()))
    stays = "; ".join((*choice.stays, *(f"{name} is given it" for name in starting)))
    stays = stays or "nothing of this fleet holds it"
    return full(f"waits for room: {room}; {stays}", choice, tuple(one.model for one in found if one.keeps))


def _arithmetic(round_: Round, beat: WorkerBeat, shortage: Shortage, needs: Needs, has: Capacity) -> str:
    if shortage.models:
        most = round_.memory.rules.max_models
        return f"{beat.worker} holds {len(has.models - has.leaving)} models, max_models is {most}"
    room = plus(has.free, has.coming)
    device = max(shortage.bytes, key=lambda one: shortage.bytes[one])
    budget = next((one.budget_bytes for one in beat.devices if one.id == device), 0)
    free = f"{format_bytes(max(0, room.get(device, 0)))} of {format_bytes(budget)}"
    return f"needs {format_bytes(needs[device])}, {free} is free on {label(beat, device)}"


def _preference(round_: Round, one: Offer) -> Sequence[object]:
    """Among offers of the same kind."""
    beat = one.beat
    if one.kind is Kind.EVICTION:
        return (*one.cost, beat.worker)
    live = sum(1 for r in beat.replicas if r.state in LIVE)
    held = live + round_.planned_count.get(beat.worker, 0)
    return (held, -left(one.needs, one.has.free), 0, 0, beat.worker)


def _cordoned(round_: Round, beat: WorkerBeat) -> bool:
    return round_.cordons.get(beat.worker) == beat.boot
