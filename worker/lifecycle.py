"""A replica's life as a pure state machine: ``step(life, event, now) → (life, actions)``. No process, no clock.

    cold → fetching → starting → restoring → initialising → warming → verifying → ready
    ready → asleep → restoring → ready             ready, asleep → draining → stopped          any → failed

A replica falls asleep and wakes by its gate's word: a request may wake it before anybody is asked. What it goes through
then is a load of one phase (``woken``), but one that runs requests already, and so drains like one that is ready.

Within ``draining`` and ``failed`` the processes end in stages: WAITING (what runs may finish) → TERMINATING (SIGTERM
was sent) → KILLING (SIGKILL, until nothing is left) → GONE (verified, memory measured free). A want for ready that
arrives while WAITING cancels the drain; later it is too late, and the agent starts the replica anew once it is gone.

``now`` is CLOCK_MONOTONIC in seconds. A phase ends by *stall*: no report of progress for as long as the phase allows.
Nothing limits how long a phase takes while it moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from rewarm.states import ENDED, LOAD_PHASES, LOADING, FailureReason, ReplicaState

S = ReplicaState

DEFAULT_STALL_S: Mapping[ReplicaState, float] = {
    S.FETCHING: 60.0,
    S.STARTING: 120.0,
    S.RESTORING: 60.0,
    S.INITIALISING: 180.0,
    S.WARMING: 120.0,
    S.VERIFYING: 60.0,
}
KILL_EVERY_S = 1.0
"""How often what refuses to die (uninterruptible sleep) is killed again."""

ALLOWED: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    S.COLD: frozenset((*LOAD_PHASES, S.READY, S.DRAINING, S.FAILED)),
    **{
        phase: frozenset((*LOAD_PHASES[index + 1 :], S.READY, S.DRAINING, S.FAILED))
        for index, phase in enumerate(LOAD_PHASES)
    },
    S.READY: frozenset((S.ASLEEP, S.DRAINING, S.FAILED)),
    S.ASLEEP: frozenset((S.RESTORING, S.READY, S.DRAINING, S.FAILED)),
    S.DRAINING: frozenset((S.READY, S.ASLEEP, S.STOPPED, S.FAILED)),
    S.STOPPED: frozenset((S.COLD,)),
    S.FAILED: frozenset((S.COLD,)),
}


class Stage(StrEnum):
    """How far the end of the processes is."""

    NONE = "none"
    WAITING = "waiting"
    TERMINATING = "terminating"
    KILLING = "killing"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, from the replica's specification."""

    stall_s: Mapping[ReplicaState, float] = field(default_factory=lambda: DEFAULT_STALL_S)
    drain_deadline_s: float = 300.0
    stop_grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """The first thing that went wrong; what follows from it is not recorded over it."""

    reason: FailureReason
    message: str
    phase: ReplicaState
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class Life:
    limits: Limits = field(default_factory=Limits)
    state: ReplicaState = S.COLD
    since: float = 0.0  # entered the state
    moved_at: float = 0.0  # last progress
    note: str = ""  # the last report's words, for the message of a stall
    stage: Stage = Stage.NONE
    deadline: float | None = None  # of the stage
    fault: Fault | None = None
    reason: str = ""  # why it drains
    asleep: bool = False  # as its gate last said, also while it drains
    woken: bool = False  # it has slept since its load: what it loads now is only its memory

    @property
    def loading(self) -> bool:
        return self.state in LOADING

    @property
    def gone(self) -> bool:
        """No process, no memory: the room may be given to others."""
        return self.stage is Stage.GONE

    @property
    def ended(self) -> bool:
        return self.state in ENDED


# --- events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawned:
    """The host process runs."""


@dataclass(frozen=True, slots=True)
class Entered:
    """The host reports a phase of the load. An earlier phase than the current one is ignored, a repeated one is
    progress."""

    phase: ReplicaState
    note: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """Progress within the phase: more bytes, another step."""


@dataclass(frozen=True, slots=True)
class BecameReady:
    """Verified by a real answer."""


@dataclass(frozen=True, slots=True)
class Slept:
    """The gate says that the engine sleeps."""


@dataclass(frozen=True, slots=True)
class Waking:
    """The gate says that the engine wakes."""


@dataclass(frozen=True, slots=True)
class Faulted:
    """The host reports a failure, or the agent found one (memory, missing weights, unresponsive gate)."""

    reason: FailureReason
    message: str
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class HostExited:
    """The host process ended; ``fault`` says how the agent classifies it where nothing was reported before."""

    fault: Faulted


@dataclass(frozen=True, slots=True)
class WantedReady:
    pass


@dataclass(frozen=True, slots=True)
class WantedStopped:
    """``now_or_never``: do not wait for what runs (the agent's second SIGTERM)."""

    reason: str = ""
    drain_deadline_s: float | None = None  # in place of the specification's
    now_or_never: bool = False


@dataclass(frozen=True, slots=True)
class Quiet:
    """The gate has nothing running and nothing reserved."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """Nothing of the replica's processes is left, and its memory was measured free."""


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = (
    Spawned
    | Entered
    | Moved
    | BecameReady
    | Slept
    | Waking
    | Faulted
    | HostExited
    | WantedReady
    | WantedStopped
    | Quiet
    | Emptied
    | Tick
)


class Action(StrEnum):
    CLOSE_GATE = "close_gate"
    OPEN_GATE = "open_gate"
    TERMINATE = "terminate"  # SIGTERM to the host
    KILL = "kill"  # SIGKILL to everything of the replica, until nothing is left; then Emptied
    PUBLISH = "publish"  # the state changed: heartbeat at once


Step = tuple[Life, tuple[Action, ...]]


def step(life: Life, event: Event, now: float) -> Step:
    """The next life and what to do. Events that make no sense in the state change nothing: they were overtaken."""
    match event:
        case Spawned():
            return _enter(life, S.STARTING, now) if life.state in (S.COLD, S.FETCHING) else (life, ())
        case Entered(phase, note):
            return _entered(life, phase, note, now)
        case Moved():
            return (replace(life, moved_at=now) if life.loading else life), ()
        case BecameReady():
            if life.state is S.DRAINING:
                return replace(life, asleep=False), ()
            up = life.loading or life.state is S.ASLEEP
            return _enter(replace(life, asleep=False), S.READY, now) if up else (life, ())
        case Slept():
            if life.state is S.READY:
                return _enter(replace(life, asleep=True, woken=True), S.ASLEEP, now)
            return (replace(life, asleep=True) if life.state is S.DRAINING else life), ()
        case Waking():
            return _enter(replace(life, note=""), S.RESTORING, now) if life.state is S.ASLEEP else (life, ())
        case Faulted():
            return _fail(life, event, now)
        case HostExited(fault):
            return _exited(life, fault, now)
        case WantedReady():
            return _wanted_ready(life, now)
        case WantedStopped():
            return _wanted_stopped(life, event, now)
        case Quiet():
            return _terminate(life, now) if life.stage is Stage.WAITING else (life, ())
        case Emptied():
            return _emptied(life, now)
        case Tick():
            return _tick(life, now)


def stall_limit_s(life: Life) -> float | None:
    """Longest time without progress in this state; None where no such limit applies."""
    if life.state not in LOAD_PHASES:
        return None
    return life.limits.stall_s.get(life.state, DEFAULT_STALL_S[life.state])


def _entered(life: Life, phase: ReplicaState, note: str, now: float) -> Step:
    if phase not in LOAD_PHASES or life.ended or life.woken or life.state in (S.READY, S.DRAINING):
        return life, ()
    if phase is life.state:
        return replace(life, moved_at=now, note=note or life.note), ()
    if phase not in ALLOWED[life.state]:
        return life, ()
    return _enter(replace(life, note=note), phase, now)


def _enter(life: Life, state: ReplicaState, now: float) -> Step:
    if state not in ALLOWED[life.state]:
        raise AssertionError(f"{life.state} → {state} is no transition")
    return replace(life, state=state, since=now, moved_at=now), (Action.PUBLISH,)


def _fail(life: Life, event: Faulted, now: float) -> Step:
    if life.ended or life.stage in (Stage.TERMINATING, Stage.KILLING):
        return life, ()
    fault = Fault(event.reason, event.message, life.state, event.exit_status)
    failed = replace(life, state=S.FAILED, since=now, fault=fault, stage=Stage.KILLING, deadline=now + KILL_EVERY_S)
    return failed, (Action.PUBLISH, Action.KILL)


def _exited(life: Life, fault: Faulted, now: float) -> Step:
    if life.stage is Stage.TERMINATING:  # as asked; its group may not have ended with it
        return replace(life, stage=Stage.KILLING, deadline=now + KILL_EVERY_S), (Action.KILL,)
    return _fail(life, fault, now)


def _wanted_ready(life: Life, now: float) -> Step:
    if life.state is S.DRAINING and life.stage is Stage.WAITING:
        back = replace(life, stage=Stage.NONE, deadline=None, reason="")
        life, actions = _enter(back, S.ASLEEP if life.asleep else S.READY, now)
        return life, (Action.OPEN_GATE, *actions)
    return life, ()  # too late to turn back: once it is gone the agent starts it anew


def _wanted_stopped(life: Life, event: WantedStopped, now: float) -> Step:
    if life.ended:
        return life, ()
    if life.state is S.DRAINING:
        return _terminate(life, now) if event.now_or_never and life.stage is Stage.WAITING else (life, ())
    life = replace(life, reason=event.reason)
    cold = life.state is S.COLD  # nothing runs, or is just being started: nobody there to ask
    # Of one that wakes, as of one that is ready: requests may run there.
    waits = (life.state in (S.READY, S.ASLEEP) or life.woken) and not event.now_or_never
    deadline_s = life.limits.drain_deadline_s if event.drain_deadline_s is None else event.drain_deadline_s
    life, actions = _enter(life, S.DRAINING, now)
    if waits:
        return replace(life, stage=Stage.WAITING, deadline=now + deadline_s), (Action.CLOSE_GATE, *actions)
    if cold:
        return replace(life, stage=Stage.KILLING, deadline=now + KILL_EVERY_S), (*actions, Action.KILL)
    life, more = _terminate(life, now)
    return life, (*actions, *more)


def _terminate(life: Life, now: float) -> Step:
    return replace(life, stage=Stage.TERMINATING, deadline=now + life.limits.stop_grace_s), (Action.TERMINATE,)


def _emptied(life: Life, now: float) -> Step:
    if life.stage is Stage.GONE:
        return life, ()
    life = replace(life, stage=Stage.GONE, deadline=None)
    if life.state is S.FAILED:
        return life, (Action.PUBLISH,)
    return replace(life, state=S.STOPPED, since=now), (Action.PUBLISH,)


def _tick(life: Life, now: float) -> Step:
    if life.deadline is not None and now >= life.deadline:
        if life.stage is Stage.WAITING:
            return _terminate(life, now)
        if life.stage is Stage.TERMINATING:
            return replace(life, stage=Stage.KILLING, deadline=now + KILL_EVERY_S), (Action.KILL,)
        if life.stage is Stage.KILLING:
            return replace(life, deadline=now + KILL_EVERY_S), (Action.KILL,)
    limit = stall_limit_s(life)
    if limit is not None and now - life.moved_at >= limit:
        said = f"; it last said: {life.note}" if life.note else ""
        message = f"no progress for {limit:g} s while {life.state.value}{said}"
        return _fail(life, Faulted(FailureReason.STALLED, message), now)
    return life, ()
