"""The decision: (state, event, now) → (actions, state). Pure: no clock, no network, no randomness of its own.

It is level-triggered: whatever the event, every model is looked at, and what is missing or too much is put right. A
lost event therefore costs at most one tick, and a new leader carries on from what Redis shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller import ahead, canary, commands, reload, resting, settle
from controller.actions import Action
from controller.events import Configured, Elected, Event, Operator, RedisBack, RedisLost
from controller.growth import grow
from controller.moving import move_jobs
from controller.places import with_places
from controller.residents import rank
from controller.retry import rest_ms
from controller.round import Round, holding
from controller.scaling import shrink, trim
from controller.state import ControllerState, Memory, ModelMemory, replicas_of
from rewarm.errors import ShuttingDown
from rewarm.messages import CatalogueEntry, ModelStatus, WorkerBeat
from rewarm.states import LIVE

HOLD_MS = 5_000
"""How long nothing expires after Redis was away, and after an election: two heartbeats of a gateway (every 2 s) and
of a worker (every 1 s), with a margin."""


@dataclass(frozen=True, slots=True)
class Decision:
    actions: tuple[Action, ...]
    state: ControllerState
    absent: Mapping[str, WorkerBeat] = field(default_factory=dict)  # what the leader says for places without a worker


def decide(state: ControllerState, event: Event, now_ms: int) -> Decision:
    """``now_ms`` is Redis ``TIME``, as all times in the view."""
    memory = _noticed(state.memory, event, now_ms)
    view, absent = with_places(state.view, state.places, holding=holding(memory, now_ms))
    round_ = Round(
        view=view,
        memory=memory,
        now_ms=now_ms,
        replicas=replicas_of(view),
        cordons=dict(view.cordons),
    )
    if round_.memory.redis_lost:
        return Decision((), replace(state, memory=round_.memory))
    round_.lift_cordons()
    if isinstance(event, Configured):
        reload.configure(round_, event.entries)
        round_.memory = replace(round_.memory, rules=event.rules, configured=True)
        round_.view = replace(view, catalogue=dict(event.entries))
    elif isinstance(event, Operator):
        commands.obey(round_, event)
    reload.fail_removed(round_)
    catalogue = round_.view.catalogue
    for model in sorted(catalogue.keys() | round_.replicas.keys()):
        entry = catalogue.get(model)
        if entry is not None and not entry.placed and round_.tickets(model):
            # They were held when it still ran here; a gateway sends the next ones there by itself.
            where = "elsewhere" if entry.remote is not None else f"as an adapter of {entry.base!r}"
            round_.fail_waiting(model, None, f"{model!r} runs {where} now: send it again", ShuttingDown.code)
        if entry is None or not entry.placed:  # of a remote one, or an adapter, nothing runs here
            settle.bury_unknown(round_, model)
            reload.retire(round_, model)
        else:
            if isinstance(event, Elected | Configured):
                settle.forsake(round_, entry)
            _settle(round_, entry)
    here = [entry for entry in catalogue.values() if entry.placed]
    for entry in sorted(here, key=lambda one: rank(round_, one)):
        _provide(round_, entry)
    resting.give_rights_back(round_)
    for group in list(round_.replicas.values()):
        for replica in group:
            round_.heed(replica)
    for entry in sorted(here, key=lambda one: one.model):
        shrink(round_, entry)
    for entry in sorted(here, key=lambda one: rank(round_, one)):
        ahead.load(round_, entry, failing=_failing(round_, entry))
    canary.look(round_)
    round_.publish_explanations()
    return Decision(tuple(round_.actions), replace(state, memory=_left_behind(round_)), absent)


def _settle(round_: Round, entry: CatalogueEntry) -> None:
    """What has happened since the last look."""
    _learn(round_, entry)
    ahead.learn(round_, entry)
    settle.bury(round_, entry)
    settle.clear_status(round_, entry)
    settle.reconsider(round_, entry)
    resting.acknowledge(round_, entry)


def _provide(round_: Round, entry: CatalogueEntry) -> None:
    """What is missing, in the right specification; and no more than may be."""
    model, policy = entry.model, entry.policy
    serving = round_.serving(model)
    status = round_.status(model)
    blocked = status is not None and round_.now_ms < status.failed_until_ms
    move_jobs(round_, entry, status)
    if blocked and not serving and status is not None:
        # Jobs wait until the failure is forgotten: this is one failed load, however often we look at it.
        if round_.tickets(model) and status.failure is not None:
            round_.fail_waiting(
                model, status.failure, f"the model {model!r} could not be loaded: {status.failure.message}"
            )
        round_.owe(model, None)
        round_.answered(model)
        return
    old = [r for r in serving if r.spec_hash != entry.spec_hash]
    if old:
        reload.roll(round_, entry, old, blocked=_resting(round_, entry, status))
        trim(round_, entry, policy.max_replicas + 1)
    if all(r.spec_hash == entry.spec_hash for r in round_.serving(model)):
        if not blocked:
            grow(round_, entry, pinned=not _resting(round_, entry, status))
        trim(round_, entry, policy.max_replicas)
    if round_.serving(model):
        round_.answered(model)


def _resting(round_: Round, entry: CatalogueEntry, status: ModelStatus | None) -> bool:
    """Starts that nobody waits for (min_replicas, a new specification) pause longer after every failed round."""
    if status is None or status.failure is None:
        return False
    return round_.now_ms < status.failure.at_ms + rest_ms(entry.policy, status.attempts)


def _failing(round_: Round, entry: CatalogueEntry) -> bool:
    status = round_.status(entry.model)
    blocked = status is not None and round_.now_ms < status.failed_until_ms
    return blocked or _resting(round_, entry, status)


def _learn(round_: Round, entry: CatalogueEntry) -> None:
    """What a replica takes, as its agent counted it, and what it keeps while it sleeps."""
    needs = [
        r.report.need_bytes
        for r in round_.group(entry.model)
        if r.report is not None and r.report.need_bytes and r.state in LIVE
    ]
    if needs:
        round_.remember(entry.model, replace(round_.of(entry.model), need_bytes=max(needs)))
    for replica in round_.group(entry.model):
        report, beat = replica.report, replica.beat
        if report is not None and report.needs and beat is not None and any(d.kind == "gpu" for d in beat.devices):
            round_.remember(entry.model, replace(round_.of(entry.model), gpu_needs=report.needs))
    asleep = [r.report.memory_bytes for r in round_.group(entry.model) if r.report is not None and r.asleep]
    if asleep:
        round_.remember(entry.model, replace(round_.of(entry.model), asleep_bytes=max(asleep)))


def _noticed(memory: Memory, event: Event, now_ms: int) -> Memory:
    """What the event itself changes in the leader's memory."""
    if isinstance(event, Elected):
        # The serial runs on: a term that is begun again must give no replica's id a second time.
        return Memory(term=event.term, serial=memory.serial, hold_until_ms=now_ms + HOLD_MS)
    if isinstance(event, RedisLost):
        return replace(memory, redis_lost=True)
    if isinstance(event, RedisBack):
        # It may have lost its last second: what it says of the catalogue is not proven until that is published again.
        return replace(memory, redis_lost=False, configured=False, hold_until_ms=now_ms + HOLD_MS)
    return memory


def _left_behind(round_: Round) -> Memory:
    known = round_.view.catalogue.keys()
    models: dict[str, ModelMemory] = {
        name: entry for name, entry in {**round_.memory.models, **round_.models}.items() if name in known
    }
    return replace(round_.memory, models=models)
