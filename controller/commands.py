"""What an operator asked for: wake, sleep, drain."""

from __future__ import annotations

from controller import ahead, growth
from controller.actions import ForgetStatus
from controller.events import Operator
from controller.round import Round
from controller.state import Pending, StopReason
from rewarm.messages import CatalogueEntry


def obey(round_: Round, command: Operator) -> None:
    """A command that cannot be carried out becomes a note in the log: the gateway that took it had nothing
    against it, and something has changed since."""
    if command.kind == "drain":
        _drain(round_, command.target)
        return
    entry = round_.view.resolve(command.target)
    if entry is not None and entry.base:
        entry = round_.view.catalogue.get(entry.base)
    if entry is None:
        round_.note(command.target, f"{command.kind}: no such model")
    elif command.kind == "wake":
        _wake(round_, entry)
    elif command.kind == "sleep":
        _sleep(round_, entry)
    else:
        round_.note(command.target, f"unknown command {command.kind!r}")


def _wake(round_: Round, entry: CatalogueEntry) -> None:
    if entry.model in round_.view.statuses:
        round_.actions.append(ForgetStatus(entry.model, "an operator wakes it"))
    serving = round_.serving(entry.model)
    if serving and all(r.rest_wanted for r in serving):
        growth.rouse(round_, entry, 1, "an operator wakes it")
    if not serving:
        round_.owe(entry.model, Pending(round_.now_ms, "an operator wakes it", asked=True))


def _sleep(round_: Round, entry: CatalogueEntry) -> None:
    model = entry.model
    if entry.policy.min_replicas:
        round_.note(model, f"sleep: refused, min_replicas is {entry.policy.min_replicas}")
        return
    if jobs := round_.jobs(model):
        round_.note(model, f"sleep: refused, {jobs} jobs wait for it and would wake it again")
        return
    if tickets := round_.tickets(model):
        round_.note(model, f"sleep: refused, {tickets} requests wait for it and would wake it again")
        return
    for replica in round_.serving(model):
        if replica.can_sleep and replica.report is not None and replica.report.ready_at_ms:
            round_.rest(replica, entry.policy, StopReason.SLEEP, "an operator puts it to sleep", if_idle=False)
        else:
            ahead.in_vain(round_, entry)
            round_.stop(replica, StopReason.SLEEP, "an operator puts it to sleep")
    round_.owe(model, None)
    round_.answered(model)


def _drain(round_: Round, target: str) -> None:
    beat = round_.view.workers.get(target)
    if beat is not None:
        round_.cordon(beat, "an operator drains it: takes nothing new until it restarts")
    entry = round_.view.resolve(target) if beat is None else None
    hit = beat is not None or entry is not None
    for group in list(round_.replicas.values()):
        for replica in list(group):
            on_it = beat is not None and replica.worker == target
            named = replica.id == target or (entry is not None and replica.model == entry.model)
            if (on_it or named) and not replica.ended and not replica.lost:
                round_.stop(replica, StopReason.DRAIN, "an operator drains it")
                hit = True
    if not hit:
        round_.note(target, "drain: no such worker or replica")
