"""How many replicas a model should have. Up at once, down only after quiet."""

from __future__ import annotations

import math
from dataclasses import replace

from controller import ahead
from controller.resting import Clocks, clocks_of
from controller.round import Round
from controller.state import Replica, StopReason
from rewarm.messages import CatalogueEntry, ModelPolicy
from rewarm.units import format_duration

SPARE_LOAD = 0.5
"""A replica is spare when what runs would fill the others to no more than this. The gap to full is the hysteresis: at
the threshold itself a replica would leave and be started again by the next request."""

FRESH_DEMAND_MS = 15_000
"""How old a demand may be that a new leader takes for unanswered: longer than any change of leaders takes (its lease is
5 s), shorter than a client that asked would wonder. With a shorter ``idle_after`` that is the bound."""


def desired(policy: ModelPolicy, *, slots: int, waiting: int, demanded: bool, pinned: bool = True) -> int:
    """Replicas that should be there at least, from the queue and the policy; not above ``max_replicas``.

    ``pinned`` is false while ``min_replicas`` has to rest after failures.
    """
    by_queue = math.ceil(waiting / (slots * policy.scale_up_waiting_per_slot)) if waiting else 0
    floor = policy.min_replicas if pinned else 0
    return min(max(floor, by_queue, 1 if demanded else 0), policy.max_replicas)


def answered_ms(round_: Round, entry: CatalogueEntry) -> int:
    """Demand up to this time has had its effect."""
    known = round_.of(entry.model).answered_ms
    if known is not None:
        return known
    window = min(FRESH_DEMAND_MS, int(entry.policy.idle_after_s * 1000))
    return round_.now_ms - window


def demanded(round_: Round, entry: CatalogueEntry) -> str:
    """Why the model is asked for now; empty when it is not.

    Demand is an event: enqueueing writes its time, so a ticket that came and went between two looks counts all the
    same.
    """
    waiting = round_.waiting(entry.model)
    if waiting:
        return f"{waiting} waiting"
    if round_.view.demand_ms.get(entry.model, 0) > answered_ms(round_, entry):
        return "asked for"
    pending = round_.of(entry.model).pending
    return pending.reason if pending is not None else ""


def shrink(round_: Round, entry: CatalogueEntry) -> None:
    """Put to sleep or stop what is idle or spare. Never what loads or runs a request, never below ``min_replicas``, and
    stop below ``min_asleep`` only what cannot sleep."""
    if round_.holding or demanded(round_, entry):
        _spare_since(round_, entry, None)
        return
    _stop_idle(round_, entry)
    _stop_spare(round_, entry)


def trim(round_: Round, entry: CatalogueEntry, limit: int) -> None:
    """Stop replicas above ``limit``: those that load first, then those that sleep, then those that run least."""
    serving = round_.serving(entry.model)
    serving.sort(key=lambda r: (not r.loading, not r.asleep, r.busy, r.id))
    for replica in serving[: max(len(serving) - limit, 0)]:
        round_.stop(replica, StopReason.SURPLUS, f"{len(serving)} replicas, {limit} are allowed")


def _stop_idle(round_: Round, entry: CatalogueEntry) -> None:
    policy = entry.policy
    least = max(policy.min_replicas, 1 if policy.pinned else 0)
    remaining = loaded = len(round_.serving(entry.model))
    for replica in round_.serving(entry.model):
        if remaining <= least:
            return
        quiet_ms = quiet_for_ms(round_, replica)
        if quiet_ms is None:
            continue
        clocks = clocks_of(entry, replica)
        quiet_s = quiet_ms / 1000
        kept = loaded <= policy.min_asleep
        if quiet_s >= clocks.stop_s and not (kept and replica.can_sleep):
            if kept:
                ahead.in_vain(round_, entry)
            why = f"idle for {format_duration(quiet_s)}, it stops after {format_duration(clocks.stop_s)}"
            round_.stop(replica, StopReason.IDLE, why, if_idle=True)
            remaining -= 1
            loaded -= 1
        elif quiet_s >= (sleep_s := _sleep_s(clocks, replica)):
            remaining -= 1
            if not replica.asleep:
                why = f"idle for {format_duration(quiet_s)}, it sleeps after {format_duration(sleep_s)}"
                round_.rest(replica, policy, StopReason.REST, why, if_idle=True)


def _sleep_s(clocks: Clocks, replica: Replica) -> float:
    """At once where it was loaded ahead and nobody has asked; instead of the stop where it is to stay."""
    return 0 if replica.ahead and replica.can_sleep else min(clocks.sleep_s, clocks.stop_s)


def quiet_for_ms(round_: Round, replica: Replica) -> int | None:
    """None while it loads or is busy. The clock starts at the last of: ready, the last completion, the last demand."""
    report = replica.report
    if (
        report is None
        or not (replica.ready or replica.asleep)
        or replica.busy
        or not (report.ready_at_ms or report.last_activity_ms)
    ):
        return None
    demand = round_.view.demand_ms.get(replica.model, 0)
    return round_.now_ms - max(report.ready_at_ms, report.last_activity_ms, demand)


def _stop_spare(round_: Round, entry: CatalogueEntry) -> None:
    """With several replicas under light load no single one ever falls idle: all get a little. One of them can go."""
    serving = [r for r in round_.serving(entry.model) if not r.rest_wanted]
    busy = sum(r.busy for r in serving)
    room = (len(serving) - 1) * entry.spec.slots * SPARE_LOAD
    if len(serving) <= max(1, entry.policy.min_replicas) or any(not r.ready for r in serving) or busy > room:
        _spare_since(round_, entry, None)
        return
    since = round_.of(entry.model).spare_since_ms
    if since is None:
        _spare_since(round_, entry, round_.now_ms)
        return
    free = [r for r in serving if not r.busy and r.report is not None]
    if free and round_.now_ms - since >= entry.policy.idle_after_s * 1000:
        victim = min(free, key=lambda r: (r.report.last_activity_ms if r.report is not None else 0, r.id))
        why = f"{busy} running fit on {len(serving) - 1} of {len(serving)} replicas"
        if len(round_.serving(entry.model)) > entry.policy.min_asleep:
            round_.stop(victim, StopReason.IDLE, why, if_idle=True)
        elif victim.can_sleep:
            round_.rest(victim, entry.policy, StopReason.REST, why, if_idle=True)
        _spare_since(round_, entry, round_.now_ms)


def _spare_since(round_: Round, entry: CatalogueEntry, since_ms: int | None) -> None:
    memory = round_.of(entry.model)
    if memory.spare_since_ms != since_ms:
        round_.remember(entry.model, replace(memory, spare_since_ms=since_ms))
