"""Idle → asleep → stopped by two clocks; what shortens them, what moves them, and what wakes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.events import Configured, Elected, Operator
from controller.resting import Clocks, clocks
from controller.state import Memory
from rewarm.messages import ModelPolicy
from rewarm.states import ReplicaState
from tests.controller.fleetview import World, entry, kinds

READY, ASLEEP, STOPPED = ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.STOPPED


def sleeper(world: World) -> str:
    """A replica that is ready and can sleep."""
    replica = world.wake()
    world.ready(replica, can_sleep=True)
    return replica


def resting(world: World) -> str:
    """One that has slept for a moment."""
    replica = sleeper(world)
    assert kinds(world.pass_s(61)) == ["Rest"]
    world.asleep(replica)
    assert world.pass_s(1) == []
    return replica


@pytest.mark.parametrize(
    ("can_sleep", "keep_alive_s", "expected"),
    [
        (True, None, Clocks(60, 300)),
        (False, None, Clocks(math.inf, 300)),
        (True, 0, Clocks(0, 300)),  # Ollama's: give the memory back at once
        (False, 0, Clocks(math.inf, 0)),
        (True, 600, Clocks(math.inf, 600)),  # kept for longer than anything sleeps
        (True, -1, Clocks(math.inf, math.inf)),
    ],
)
def test_the_clocks(can_sleep: bool, keep_alive_s: float | None, expected: Clocks) -> None:
    policy = ModelPolicy(sleep_after_s=60, idle_after_s=300)
    assert clocks(policy, can_sleep=can_sleep, keep_alive_s=keep_alive_s) == expected


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.booleans(), st.none() | st.floats(-10, 1e4))
def test_sleep_always_comes_before_the_stop(
    sleep_s: float, idle_s: float, can_sleep: bool, keep_alive_s: float | None
) -> None:
    policy = ModelPolicy(sleep_after_s=sleep_s, idle_after_s=idle_s)
    found = clocks(policy, can_sleep=can_sleep, keep_alive_s=keep_alive_s)
    assert found.sleep_s == math.inf or found.sleep_s < found.stop_s
    assert can_sleep or found.sleep_s == math.inf


def test_idle_then_asleep_then_stopped() -> None:
    world = World.of(entry(sleep_after_s=60, idle_after_s=300, sleep_level=2))
    replica = sleeper(world)
    seen = world.now_ms
    assert world.pass_s(59) == []
    assert kinds(world.pass_s(2)) == ["Rest"]
    want = world.want_of(replica)
    assert (want.state, want.reason, want.sleep_level) == (ASLEEP, "rest", 2)
    assert (want.if_last_activity_ms, want.if_ready_at_ms) == (seen, seen)
    assert world.pass_s(1) == [], "said once"
    world.asleep(replica)
    assert world.pass_s(230) == []
    assert kinds(world.pass_s(10)) == ["Stop"]
    assert world.want_of(replica).state is STOPPED


def test_what_cannot_sleep_stops_as_before() -> None:
    world = World.of(entry(sleep_after_s=10, idle_after_s=60))
    world.wake()
    assert world.pass_s(59) == []
    assert kinds(world.pass_s(2)) == ["Stop"]


def test_a_replica_that_is_pinned_does_not_sleep() -> None:
    world = World.of(entry(sleep_after_s=10, min_replicas=1))
    (replica,) = world.wanted()
    world.ready(replica, can_sleep=True)
    assert world.pass_s(3600) == []


def test_what_is_pinned_stays_once_it_is_loaded() -> None:
    world = World.of(entry(pinned=True, sleep_after_s=10, idle_after_s=60))
    assert world.pass_s(1) == [], "nobody has asked yet"
    sleeper(world)
    assert world.pass_s(3600) == []


def test_a_ticket_wakes_it_instead_of_starting_another() -> None:
    world = World.of(entry(max_replicas=2))
    replica = resting(world)
    world.ask()
    assert kinds(world.step()) == ["Keep"]
    assert world.wanted() == [replica]


def test_a_request_that_woke_it_by_itself_is_acknowledged() -> None:
    world = World.of(entry())
    replica = resting(world)
    world.ready(replica, in_flight=1, last_activity_ms=world.now_ms - 61_000)
    assert kinds(world.step()) == ["Keep"]
    assert world.want_of(replica).state is READY


def test_a_request_before_it_slept_makes_the_wish_void() -> None:
    world = World.of(entry())
    replica = sleeper(world)
    began = world.now_ms
    assert kinds(world.pass_s(61)) == ["Rest"]
    world.ready(replica, ready_at_ms=began, last_activity_ms=world.now_ms)
    assert kinds(world.step()) == ["Keep"]


def test_the_operator_puts_to_sleep_what_can_and_wakes_it() -> None:
    world = World.of(entry())
    replica = sleeper(world)
    assert kinds(world.step(Operator("sleep", "m"))) == ["Rest"]
    want = world.want_of(replica)
    assert (want.reason, want.if_last_activity_ms) == ("sleep", None)  # as soon as nothing runs
    world.asleep(replica)
    assert world.step(Operator("sleep", "m")) == []
    assert kinds(world.step(Operator("wake", "m"))) == ["Keep"]
    assert world.want_of(replica).state is READY


def test_a_new_leader_leaves_what_sleeps_asleep() -> None:
    world = World.of(entry())
    replica = resting(world)
    world.memory = Memory()
    world.step(Elected(2))
    world.pass_s(20)
    assert world.want_of(replica).state is ASLEEP
    world.wants.clear()  # Redis came back empty
    world.pass_s(1)
    assert world.want_of(replica).state is ASLEEP


def test_a_new_specification_stops_what_sleeps_and_starts_nothing() -> None:
    world = World.of(entry())
    replica = resting(world)
    made = world.step(Configured({"m": entry(spec_hash="h2")}))
    assert [kind for kind in kinds(made) if kind in ("Start", "Stop")] == ["Stop"]
    assert world.want_of(replica).state is STOPPED
