"""A replica's life, decided without a process, a socket or a clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewarm.states import LOAD_PHASES, LOADING, FailureReason, ReplicaState
from worker import lifecycle
from worker.lifecycle import (
    ALLOWED,
    Action,
    BecameReady,
    Emptied,
    Entered,
    Faulted,
    HostExited,
    Life,
    Limits,
    Moved,
    Quiet,
    Slept,
    Spawned,
    Stage,
    Tick,
    Waking,
    WantedReady,
    WantedStopped,
    step,
)

S = ReplicaState
LIMITS = Limits({**lifecycle.DEFAULT_STALL_S, S.RESTORING: 10.0}, drain_deadline_s=60.0, stop_grace_s=5.0)
CRASH = Faulted(FailureReason.ENGINE_EXITED, "gone")


def after(*events: lifecycle.Event, life: Life | None = None, now: float = 0.0) -> tuple[Life, list[Action]]:
    life = life or Life(LIMITS)
    actions: list[Action] = []
    for event in events:
        life, more = step(life, event, now)
        actions += more
    return life, actions


READY = (Spawned(), Entered(S.RESTORING), Entered(S.WARMING), BecameReady())


def test_a_load_goes_through_its_phases_and_may_skip_some() -> None:
    life, actions = after(*READY)
    assert life.state is S.READY
    assert set(actions) == {Action.PUBLISH}


def test_an_earlier_phase_is_ignored() -> None:
    life, _ = after(Spawned(), Entered(S.WARMING), Entered(S.RESTORING))
    assert life.state is S.WARMING


def test_a_phase_lasts_as_long_as_it_moves_and_a_stall_ends_it() -> None:
    life, _ = after(Spawned(), Entered(S.RESTORING, "reading weights"))
    for now in range(0, 1000, 9):
        life, actions = step(life, Moved(), float(now))
        life, actions = step(life, Tick(), now + 8.9)
        assert life.state is S.RESTORING
        assert not actions
    life, actions = step(life, Tick(), now + 10.0)
    assert life.state is S.FAILED
    assert actions == (Action.PUBLISH, Action.KILL)
    assert life.fault is not None
    assert life.fault.reason is FailureReason.STALLED
    assert "reading weights" in life.fault.message


def test_ready_never_stalls() -> None:
    life, _ = after(*READY)
    assert step(life, Tick(), 1e9) == (life, ())


def test_drain_waits_for_what_runs_then_terminates_then_kills() -> None:
    life, actions = after(*READY, WantedStopped("idle"))
    assert (life.state, life.stage, actions[-2:]) == (S.DRAINING, Stage.WAITING, [Action.CLOSE_GATE, Action.PUBLISH])
    life, actions = after(Tick(), life=life, now=59.0)
    assert not actions
    life, actions = after(Quiet(), life=life, now=59.0)
    assert (life.stage, actions) == (Stage.TERMINATING, [Action.TERMINATE])
    life, actions = after(Tick(), life=life, now=64.0)
    assert (life.stage, actions) == (Stage.KILLING, [Action.KILL])
    life, actions = after(Tick(), life=life, now=65.0)
    assert actions == [Action.KILL]
    life, actions = after(Emptied(), life=life, now=65.0)
    assert (life.state, life.gone, actions) == (S.STOPPED, True, [Action.PUBLISH])


def test_the_drain_deadline_does_not_wait_for_quiet() -> None:
    life, _ = after(*READY, WantedStopped())
    life, actions = after(Tick(), life=life, now=60.0)
    assert actions == [Action.TERMINATE]


def test_a_host_that_exits_as_asked_still_has_its_group_killed() -> None:
    life, actions = after(*READY, WantedStopped(), Quiet(), HostExited(CRASH))
    assert (life.stage, actions[-1]) == (Stage.KILLING, Action.KILL)
    life, _ = after(Emptied(), life=life)
    assert (life.state, life.fault) == (S.STOPPED, None)


def test_asleep_and_awake_again_by_the_gates_word() -> None:
    life, actions = after(*READY, Slept())
    assert (life.state, life.asleep) == (S.ASLEEP, True)
    life, actions = after(Waking(), life=life)
    assert (life.state, life.woken) == (S.RESTORING, True)
    life, more = after(BecameReady(), life=life)
    assert (life.state, life.asleep) == (S.READY, False)
    assert {*actions, *more} == {Action.PUBLISH}


def test_a_wake_that_does_not_move_is_stalled_as_a_load_is() -> None:
    life, _ = after(*READY, Slept(), Waking(), Tick())
    life, _ = after(Tick(), life=life, now=11.0)
    assert life.fault is not None
    assert life.fault.reason is FailureReason.STALLED


@pytest.mark.parametrize("events", [(Slept(),), (Slept(), Waking())])
def test_what_sleeps_or_wakes_drains_as_what_is_ready(events: tuple[lifecycle.Event, ...]) -> None:
    """Its gate is closed first: a request may be in there."""
    life, actions = after(*READY, *events, WantedStopped("idle"))
    assert (life.state, life.stage) == (S.DRAINING, Stage.WAITING)
    assert Action.CLOSE_GATE in actions
    assert Action.TERMINATE not in actions
    life, actions = after(Quiet(), life=life)
    assert actions == [Action.TERMINATE]


def test_a_cancelled_drain_goes_back_to_sleep() -> None:
    life, actions = after(*READY, Slept(), WantedStopped("idle"), WantedReady())
    assert life.state is S.ASLEEP
    assert Action.OPEN_GATE in actions
    life, _ = after(*READY, WantedStopped("idle"), Slept(), WantedReady())
    assert life.state is S.ASLEEP


def test_an_engine_that_dies_asleep_has_failed() -> None:
    life, actions = after(*READY, Slept(), HostExited(CRASH))
    assert life.state is S.FAILED
    assert Action.KILL in actions


def test_a_want_for_ready_cancels_the_drain_while_requests_finish() -> None:
    life, actions = after(*READY, WantedStopped(), WantedReady())
    assert (life.state, life.stage, life.deadline) == (S.READY, Stage.NONE, None)
    assert Action.OPEN_GATE in actions


def test_after_sigterm_it_is_too_late_to_turn_back() -> None:
    life, actions = after(*READY, WantedStopped(), Quiet(), WantedReady())
    assert life.state is S.DRAINING
    assert Action.OPEN_GATE not in actions


def test_a_load_that_is_not_wanted_any_more_ends_without_waiting() -> None:
    life, actions = after(Spawned(), Entered(S.RESTORING), WantedStopped())
    assert (life.state, life.stage, actions[-1]) == (S.DRAINING, Stage.TERMINATING, Action.TERMINATE)
    life, actions = after(WantedStopped())
    assert (life.state, actions[-1]) == (S.DRAINING, Action.KILL)


def test_an_engine_that_dies_fails_at_once_whatever_it_was_doing() -> None:
    for events in ((), (Spawned(),), READY, (*READY, WantedStopped())):
        life, actions = after(*events, HostExited(CRASH))
        assert life.state is S.FAILED
        assert actions[-2:] == [Action.PUBLISH, Action.KILL]


def test_the_first_fault_is_the_one_that_is_told() -> None:
    life, _ = after(Spawned(), Faulted(FailureReason.WEIGHTS_CORRUPT, "truncated"), HostExited(CRASH))
    assert life.fault is not None
    assert life.fault.reason is FailureReason.WEIGHTS_CORRUPT
    assert life.fault.phase is S.STARTING


def test_now_or_never_cuts_a_drain_short() -> None:
    _, actions = after(*READY, WantedStopped(), WantedStopped(now_or_never=True))
    assert actions[-1] is Action.TERMINATE


EVENTS = st.one_of(
    st.just(Spawned()),
    st.sampled_from(LOAD_PHASES).map(Entered),
    st.sampled_from([Moved(), BecameReady(), CRASH, HostExited(CRASH), WantedReady(), Quiet(), Emptied(), Tick()]),
    st.sampled_from([Slept(), Waking()]),
    st.builds(WantedStopped, now_or_never=st.booleans()),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 90)), max_size=40))
def test_no_order_of_events_leaves_the_map_or_loses_a_process(events: Sequence[tuple[lifecycle.Event, float]]) -> None:
    life, now = Life(LIMITS), 0.0
    killed = terminated = False
    for event, wait_s in events:
        if isinstance(event, Emptied) and not killed:
            continue  # said only after a kill
        before = life
        now += wait_s
        life, actions = step(life, event, now)
        if life.state is not before.state:
            assert life.state in ALLOWED[before.state], (before.state, event, life.state)
            assert Action.PUBLISH in actions
        killed = killed or Action.KILL in actions
        terminated = terminated or Action.TERMINATE in actions
        if life.gone:
            assert killed
            assert life.ended
        if life.state is S.FAILED:
            assert life.fault is not None
        if life.state in LOADING or life.state is S.READY:
            assert life.stage is Stage.NONE
        if before.gone:
            assert life == before
    # Whatever happened, stopping ends: time alone leads to a kill.
    life, actions = step(life, WantedStopped(), now)
    for _ in range(4):
        now += 100.0
        life, more = step(life, Tick(), now)
        actions += more
    assert life.gone or Action.KILL in actions


# Before its pod is there a replica has no worker, and so no life here: the leader reports for it.
@pytest.mark.parametrize("state", [state for state in ReplicaState if state is not S.POD_PENDING])
def test_every_state_is_on_the_map(state: ReplicaState) -> None:
    assert state in ALLOWED
