"""What the leader wants against what there is: the agent's next steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rewarm.messages import Want
from rewarm.states import ReplicaState

UNWANTED_AFTER_S = 30.0
"""A running replica that no want names any more is drained after this long: a fresh Redis, or a leader that just took
over, first learns from the heartbeat that it exists."""


@dataclass(frozen=True, slots=True)
class Known:
    """A replica of this agent. ``gone``: no process of it is left. ``unwanted_s``: for how long no want has named
    it."""

    term: int
    attempt: int
    state: ReplicaState
    gone: bool
    unwanted_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    want: Want


@dataclass(frozen=True, slots=True)
class Accept:
    """A newer term, a want for sleep, or one for ready, which may cancel a drain and end a sleep."""

    want: Want


@dataclass(frozen=True, slots=True)
class Stop:
    want: Want


@dataclass(frozen=True, slots=True)
class Forget:
    replica: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nobody wants it: drain it."""

    replica: str


@dataclass(frozen=True, slots=True)
class Tell:
    """The leader asks to stop what does not exist here: report it as stopped."""

    want: Want


Step = Start | Accept | Stop | Forget | Abandon | Tell


def reconcile(wants: Iterable[Want], known: Mapping[str, Known], *, draining: bool = False) -> list[Step]:
    """``draining``: the agent stops; nothing is started, and what runs is left to the shutdown."""
    steps: list[Step] = []
    wanted: set[str] = set()
    for want in wants:
        wanted.add(want.replica)
        here = known.get(want.replica)
        if here is not None and want.term < here.term:
            continue  # an old leader's: refused
        if want.state is ReplicaState.READY:
            steps += _ready(want, here, draining)
        elif here is None:
            steps.append(Tell(want))
        elif want.state is ReplicaState.ASLEEP:
            steps += [] if here.gone or draining else [Accept(want)]
        elif not _ended(here.state):
            steps.append(Stop(want))
    for replica, here in known.items():
        if replica in wanted:
            continue
        if here.gone:
            steps.append(Forget(replica))
        elif not _ended(here.state) and here.state is not ReplicaState.DRAINING and not draining:
            if here.unwanted_s >= UNWANTED_AFTER_S:
                steps.append(Abandon(replica))
    return steps


def _ready(want: Want, here: Known | None, draining: bool) -> list[Step]:
    if draining:
        return []
    if here is None:
        return [Start(want)]
    if not here.gone:
        return [Accept(want)]
    if here.state is ReplicaState.FAILED and want.attempt <= here.attempt:
        return []  # failed already; the leader decides on another attempt
    return [Start(want)]


def _ended(state: ReplicaState) -> bool:
    return state in (ReplicaState.STOPPED, ReplicaState.FAILED)
