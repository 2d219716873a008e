"""Starts what is missing of a model and wakes what sleeps, or owes it and says what it waits for."""

from __future__ import annotations

from dataclasses import replace

from controller import ahead, settle
from controller.capacity import capacity, coming, stop_frees
from controller.eviction import Leaving, Shortage, choose, words
from controller.needs import minus, plus, ways
from controller.placement import Kind, best_of, claim, place
from controller.residents import asker_of, residents
from controller.round import Round
from controller.scaling import demanded, desired
from controller.state import Pending, Replica, StopReason
from rewarm.messages import CatalogueEntry
from rewarm.units import format_duration

PLACEMENT_PATIENCE_MS = 60_000
"""How long a start waits for a worker or for room before the model fails, or, with nobody waiting, is given up; one
that an operator asked for waits on."""


SCHEDULED_WITHIN_MS = 10_000
"""How long a cluster is given to notice that a pod has left before the next one has to."""


def grow(round_: Round, entry: CatalogueEntry, *, pinned: bool) -> None:
    """``pinned``: ``min_replicas`` counts; not while it has to rest after failures."""
    model = entry.model
    owed = round_.of(model).pending
    why = demanded(round_, entry)
    want = desired(
        entry.policy,
        slots=entry.spec.slots,
        waiting=round_.waiting(model),
        demanded=bool(why),
        pinned=pinned,
    )
    rouse(round_, entry, want, why or "min_replicas")
    _make_room_for_starting(round_, entry)
    serving = len(round_.serving(model))
    if serving >= want and owed is not None and serving:
        round_.owe(model, None)
    for _ in range(want - serving):
        spot = place(round_, entry, asker=asker_of(round_, entry))
        if spot.worker is None:
            evict(round_, spot.leaving, model)
            if spot.home:
                claim(round_, spot.home, model, spot.needs, loads=bool(spot.leaving))
            if spot.never:
                _fail_for_ever(round_, entry, spot.obstacle)
            else:
                _owe(round_, entry, owed, why or "min_replicas", spot.obstacle, no_worker=spot.no_worker)
                if not serving:
                    round_.explain(model, spot.obstacle, spot.home, [one.resident.model for one in spot.leaving])
            return
        reason = why or f"min_replicas is {entry.policy.min_replicas}"
        attempt, not_before, deaths = (owed.attempt, owed.not_before_ms, owed.deaths) if owed is not None else (1, 0, 0)
        round_.start(
            entry,
            spot.worker,
            reason,
            needs=spot.needs,
            attempt=attempt,
            not_before_ms=not_before,
            deaths=deaths,
        )
        owed = None
        round_.owe(model, None)


def rouse(round_: Round, entry: CatalogueEntry, wanted: int, why: str) -> None:
    """Wake what sleeps, before anything is started anew. ``wanted``: replicas that should be up."""
    serving = round_.serving(entry.model)
    up = sum(1 for r in serving if not r.rest_wanted)
    resting = [r for r in serving if r.rest_wanted]
    resting.sort(key=lambda r: (r.asleep, r.id))  # those that are not asleep yet cost nothing
    for replica in resting[: max(0, wanted - up)]:
        if not replica.evicted or _takes_room_back(round_, entry, replica):
            round_.keep(replica, why)


def evict(round_: Round, leaving: tuple[Leaving, ...], asker: str) -> None:
    """Tell them to sleep or to stop; those in use drain first."""
    for one in leaving:
        replica = round_.find(one.resident.replica)
        entry = round_.view.catalogue.get(one.resident.model)
        if replica is None:
            continue
        reason = f"{asker} needs the room: {one.why}"
        if not one.sleep:
            ahead.yielded(round_, replica, asker)
        if one.sleep and entry is not None:
            round_.rest(replica, entry.policy, StopReason.EVICTED, reason, if_idle=one.if_idle, may_wake=False)
        else:
            round_.stop(replica, StopReason.EVICTED, reason, if_idle=one.if_idle)


def _takes_room_back(round_: Round, entry: CatalogueEntry, replica: Replica) -> bool:
    """It gave its memory up for another model, and is asked for again: as any other that has no room."""
    if replica.beat is None:
        return False
    if not replica.asleep:
        has = capacity(round_, replica.beat)
        back = coming(round_, replica)
        missing = minus(back, plus(has.free, has.coming))
        if missing:
            round_.explain(entry.model, "waits for its next turn: it makes room for another model", replica.worker)
        return not missing
    return _room_here(round_, entry, replica)


def _make_room_for_starting(round_: Round, entry: CatalogueEntry) -> None:
    """Replicas whose agent found no room for them: their need was not known here, or what sleeps wants to wake."""
    for replica in round_.serving(entry.model):
        waits = replica.report is not None and replica.report.waits_for_room and not replica.rest_wanted
        if waits and not replica.ahead:
            _room_here(round_, entry, replica)


def _room_here(round_: Round, entry: CatalogueEntry, replica: Replica) -> bool:
    """Whether there is room for it on its worker now; otherwise somebody is told to leave, or it says who stays."""
    if replica.beat is None:
        return False
    if replica.beat.only:
        _make_room_among_places(round_, entry)
        return False
    report = replica.report
    if replica.asleep and report is not None:  # where it lies, less what it still holds there
        some = [minus(report.needs, stop_frees(replica))]
    else:
        some = ways(round_, entry, replica.beat)
    found = best_of(round_, replica.beat, entry.model, some, asker_of(round_, entry))
    evict(round_, found.choice.leaving, entry.model)
    claim(round_, replica.worker, entry.model, found.needs, loads=False)
    if found.kind is not Kind.NOW:
        yields = [one.resident.model for one in found.choice.leaving]
        round_.explain(entry.model, found.obstacle, replica.worker, yields)
    return found.kind is Kind.NOW


def _make_room_among_places(round_: Round, entry: CatalogueEntry) -> None:
    """Its pod has none in the cluster, whose arithmetic is not ours: one of the other places' replicas stops, and then
    it is seen whether that was enough."""
    places = [b for b in round_.view.workers.values() if b.only]
    since_ms = round_.now_ms - round_.of(entry.model).made_room_ms
    if round_.holding or since_ms < SCHEDULED_WITHIN_MS or any(capacity(round_, b).leaving for b in places):
        return
    found = [resident for beat in places for resident in residents(round_, beat, entry.model)]
    choice = choose(found, Shortage(models=1), asker_of(round_, entry), round_.memory.rules, round_.now_ms)
    if choice.leaving and round_.memory.rules.evict:
        evict(round_, choice.leaving, entry.model)
        round_.remember(entry.model, replace(round_.of(entry.model), made_room_ms=round_.now_ms))
        text = f"waits for room in the cluster: {words(choice.leaving)}"
        round_.explain(entry.model, text, yields=[one.resident.model for one in choice.leaving])
    elif choice.stays:
        round_.explain(entry.model, f"waits for room in the cluster: {'; '.join(choice.stays)}")


def _owe(
    round_: Round, entry: CatalogueEntry, owed: Pending | None, why: str, obstacle: str, *, no_worker: bool
) -> None:
    model, now = entry.model, round_.now_ms
    pending = owed or Pending(now, why)
    waited_ms = now - pending.since_ms
    if round_.serving(model):
        return  # scaling up can wait: what is there serves
    if waited_ms >= PLACEMENT_PATIENCE_MS and not round_.waiting(model) and not pending.asked:
        round_.note(model, f"gives up on a start that nobody waits for: {obstacle}")
        round_.owe(model, None)
        round_.answered(model)
        return
    held_ms = min(waited_ms, now - round_.oldest_ticket_ms(model))  # jobs may have waited far longer
    if held_ms >= PLACEMENT_PATIENCE_MS and no_worker and round_.tickets(model):
        message = f"{obstacle} (for {format_duration(held_ms / 1000)})"
        settle.fail(round_, entry, settle.no_worker_failure(now, message), 0, message)
        return
    round_.owe(model, replace(pending, obstacle=obstacle))


def _fail_for_ever(round_: Round, entry: CatalogueEntry, obstacle: str) -> None:
    """What never leaves holds too much: nothing that happens by itself will change that."""
    message = obstacle.removeprefix("waits for room: ")
    settle.fail(round_, entry, settle.no_room_failure(round_.now_ms, message), 0, message)
