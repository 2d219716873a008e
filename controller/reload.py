"""A changed configuration: policy at once, a new specification by replacement, a removed model by retirement.

Replacement needs no memory of its own: replicas whose specification hash is not the catalogue's are old, and every
look at the fleet takes the next step. One new replica at a time; an old one leaves when a new one is ready (its
answer verified). Where both do not fit, the old one drains first.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller import ahead
from controller.actions import ForgetStatus, PublishCatalogue
from controller.placement import place
from controller.round import Round
from controller.state import Pending, Replica, StopReason
from rewarm.errors import ModelRemoved
from rewarm.messages import CatalogueEntry


def configure(round_: Round, entries: Mapping[str, CatalogueEntry]) -> None:
    """Publish what was read."""
    before = round_.view.catalogue
    changed = sorted(n for n in entries if n in before and before[n] != entries[n])
    added, removed = sorted(entries.keys() - before.keys()), sorted(before.keys() - entries.keys())
    parts = [f"{word} {', '.join(names)}" for word, names in _named(added, changed, removed) if names]
    reason = "; ".join(parts) or "nothing changed"
    round_.actions.append(PublishCatalogue(dict(entries), reason))
    for name in changed:
        if before[name].spec_hash == entries[name].spec_hash:
            continue
        ahead.forgive(round_, name)
        if name in round_.view.statuses:
            round_.actions.append(ForgetStatus(name, "it has a new specification"))


def fail_removed(round_: Round) -> None:
    """Whoever waits for a model that is not in the catalogue: looked at again and again, for a job may come back to its
    queue hours later (a drain, a lost lease), a gateway that has not heard yet may fill it, a leader may die between
    the catalogue and this."""
    if not round_.memory.configured:
        return
    for name in sorted(round_.view.demand_ms.keys() - round_.view.catalogue.keys()):
        message = f"the model {name!r} was removed from the configuration"
        round_.fail_waiting(name, None, message, ModelRemoved.code, jobs="fail")


def retire(round_: Round, model: str) -> None:
    """The model is not in the catalogue: everything of it drains."""
    for replica in round_.group(model):
        if replica.want is not None and not replica.lost and not replica.stop_wanted:
            round_.stop(replica, StopReason.REMOVED, "the model was removed from the configuration")


def roll(round_: Round, entry: CatalogueEntry, old: list[Replica], *, blocked: bool) -> None:
    """One step from ``old`` to the catalogue's specification. ``blocked``: its last load failed, not long ago."""
    policy = entry.policy
    for replica in [r for r in old if r.rest_wanted]:
        round_.stop(replica, StopReason.REPLACED, "its specification changed while it slept")
        old.remove(replica)
    new = [r for r in round_.serving(entry.model) if r.spec_hash == entry.spec_hash]
    target = min(policy.max_replicas, max(policy.min_replicas, len(old), len(new), 1))
    ready = sum(1 for r in new if r.ready)
    for replica in sorted(old, key=_least_useful)[: max(ready + len(old) - target, 0)]:
        round_.stop(replica, StopReason.REPLACED, "a replica of the new specification is ready")
        old.remove(replica)
    if blocked or len(new) > ready or len(new) >= target or not old:
        return
    useless = [r for r in old if r.loading]
    for replica in useless:
        _make_way(round_, entry, replica, "its specification changed while it was loading")
    if useless:
        return
    spot = place(round_, entry)
    if spot.worker is not None and len(new) + len(old) <= policy.max_replicas:
        why = "the specification changed; the old replica serves until this one is ready"
        round_.start(entry, spot.worker, why, needs=spot.needs)
    elif not spot.no_worker:
        why = f"the specification changed and both do not fit: {spot.obstacle}"
        _make_way(round_, entry, min(old, key=_least_useful), why)


def _make_way(round_: Round, entry: CatalogueEntry, replica: Replica, why: str) -> None:
    round_.stop(replica, StopReason.REPLACED, why)
    if not replica.ahead:  # which takes what room there is, and has nobody leave
        round_.owe(entry.model, Pending(round_.now_ms, "the specification changed"))


def _least_useful(replica: Replica) -> tuple[bool, int, str]:
    return (not replica.loading, replica.busy, replica.id)


def _named(added: list[str], changed: list[str], removed: list[str]) -> list[tuple[str, list[str]]]:
    return [("added", added), ("changed", changed), ("removed", removed)]
