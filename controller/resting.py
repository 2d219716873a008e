"""Sleep: which idle replicas release their memory, and which of those that sleep are stopped.

Two clocks run from the last activity: after ``sleep_after`` a replica sleeps, where it can, and after ``idle_after`` it
stops, asleep or not. A request's ``keep_alive`` replaces the first one, and the second where nothing can sleep. What
leaves earlier because another model needs the memory is :mod:`controller.eviction`'s matter.

Replicas that ``min_replicas`` keeps, and those of a ``pinned`` model, neither sleep nor stop; those that ``min_asleep``
keeps sleep, and stop only where they cannot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from controller import ahead
from controller.round import Round
from controller.state import Replica, StopReason
from rewarm.messages import CatalogueEntry, ModelPolicy


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds of quiet. Infinite: never."""

    sleep_s: float
    stop_s: float


def clocks(policy: ModelPolicy, *, can_sleep: bool, keep_alive_s: float | None) -> Clocks:
    """``keep_alive_s``: what the last request said, None where it said nothing, below 0 for ever."""
    sleep_s, stop_s = policy.sleep_after_s, policy.idle_after_s
    if keep_alive_s is not None:
        kept = math.inf if keep_alive_s < 0 else keep_alive_s
        if can_sleep:
            sleep_s, stop_s = kept, max(stop_s, kept)
        else:
            stop_s = kept
    if not can_sleep or sleep_s >= stop_s:
        sleep_s = math.inf
    return Clocks(sleep_s, stop_s)


def clocks_of(entry: CatalogueEntry, replica: Replica) -> Clocks:
    report = replica.report
    can_sleep = report is not None and report.can_sleep
    keep_alive_s = report.keep_alive_s if report is not None else None
    return clocks(entry.policy, can_sleep=can_sleep, keep_alive_s=keep_alive_s)


def give_rights_back(round_: Round) -> None:
    """What sleeps because others needed its memory may wake for a request again, once nobody waits for memory there."""
    for group in list(round_.replicas.values()):
        for replica in list(group):
            planned = round_.planned_bytes.get(replica.worker, {})
            needs = replica.report.needs if replica.report is not None else {}
            if replica.evicted and replica.asleep and not any(planned.get(device) for device in needs):
                round_.let_wake(replica, "nobody waits for its memory any more")


def acknowledge(round_: Round, entry: CatalogueEntry) -> None:
    """A request has woken a replica that was to sleep: it is up."""
    for replica in round_.group(entry.model):
        if replica.rest_wanted and replica.woken_since and not replica.lost and not replica.ended:
            round_.keep(replica, "a request woke it")
        elif replica.rest_wanted and replica.ready and _overtaken(replica):
            round_.keep(replica, "was used before it could sleep")
        elif replica.evicted and replica.ready and not replica.can_sleep:
            ahead.in_vain(round_, entry)
            round_.stop(replica, StopReason.EVICTED, "it cannot sleep after all, and others need its room")


def _overtaken(replica: Replica) -> bool:
    assert replica.want is not None
    assert replica.report is not None
    last = replica.want.if_last_activity_ms
    return last is not None and (replica.busy > 0 or replica.report.last_activity_ms != last)
