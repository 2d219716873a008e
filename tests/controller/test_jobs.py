"""Jobs that wait count like requests that wait; but a failed load does not end them."""

from __future__ import annotations

import pytest

from controller.events import Configured, Elected, Operator
from controller.state import Memory
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import World, entry, kinds


def test_a_job_wakes_its_model() -> None:
    world = World.of(entry())
    world.submit()
    assert kinds(world.step()) == ["Start"]
    assert world.want_of(world.wanted()[0]).reason == "1 waiting"


def test_many_jobs_are_worth_more_replicas_as_many_requests_are() -> None:
    world = World.of(entry(slots=4, scale_up_waiting_per_slot=2.0, max_replicas=3), workers=3)
    world.ask(tickets=4)
    world.submit(jobs=5)
    world.step()
    assert len(world.wanted()) == 2


def test_a_model_never_falls_idle_while_jobs_wait() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    world.submit()
    world.demand["m"] = 0
    assert world.pass_s(3600) == []
    world.jobs.clear()
    world.pass_s(61)
    assert world.stopping() == [replica]


def test_a_running_job_is_a_running_request() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    world.ready(replica, ready_at_ms=1, last_activity_ms=1, in_flight=1)
    assert world.pass_s(3600) == []


def test_a_job_that_comes_during_an_idle_drain_turns_it_back() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    world.pass_s(61)
    world.report(replica, ReplicaState.DRAINING)
    world.submit()
    assert kinds(world.step()) == ["Keep"]


def test_jobs_of_a_dead_leader_are_seen_by_the_next() -> None:
    world = World.of(entry())
    world.submit()
    world.demand.clear()
    world.memory = Memory()
    assert kinds(world.step(Elected(2))) == ["Start"]


# --- failed loads ----------------------------------------------------------------------------------------------------


def failing() -> World:
    """A model whose only attempt to load has just failed, with two jobs waiting."""
    world = World.of(entry(load_attempts=1, failure_memory_s=30))
    world.submit(jobs=2)
    world.step()
    world.fails(world.wanted()[0], FailureReason.ENGINE_EXITED)
    world.step()
    return world


def test_a_failed_load_counts_once_however_often_it_is_looked_at() -> None:
    world = failing()
    assert [action.jobs for action in world.failed] == ["count"]
    for _ in range(20):
        world.pass_s(1)
    assert len(world.failed) == 1


def test_after_a_while_jobs_have_it_loaded_again() -> None:
    world = failing()
    assert world.pass_s(29) == []
    assert "Start" in kinds(world.pass_s(2))
    world.fails(world.wanted()[0], FailureReason.ENGINE_EXITED)
    world.step()
    assert [action.jobs for action in world.failed] == ["count", "count"]


def test_requests_that_meet_the_remembered_failure_fail_without_the_jobs() -> None:
    world = failing()
    world.ask()
    world.pass_s(1)
    assert [action.jobs for action in world.failed] == ["count", "keep"]
    assert world.jobs == {"m": 2}


def test_without_any_worker_jobs_wait_and_no_failure_is_remembered() -> None:
    world = World.of(entry(), workers=0)
    world.submit()
    for _ in range(30):
        world.pass_s(60)
    assert world.failed == []
    assert world.statuses == {}
    world.add_worker("late")
    assert kinds(world.step()) == ["Start"]


def test_a_request_that_waits_beside_jobs_for_a_worker_still_hears_that_there_is_none() -> None:
    world = World.of(entry(), workers=0)
    world.submit()
    world.ask()
    world.step()
    world.pass_s(61)
    assert [(action.code, action.jobs) for action in world.failed] == [("model_load_failed", "keep")]


def test_a_request_that_comes_to_jobs_that_wait_for_a_worker_has_a_minute_of_its_own() -> None:
    world = World.of(entry(), workers=0)
    world.submit()
    world.step()
    world.pass_s(3600)
    world.ask()
    world.step()
    world.pass_s(59)
    assert (world.failed, world.statuses) == ([], {})
    world.pass_s(2)
    assert "(for 1 min 01 s)" in world.failed[0].message


# --- the operator ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [False, True])
def test_sleep_is_refused_while_jobs_wait(loaded: bool) -> None:
    world = World.of(entry())
    if loaded:
        world.wake()
        world.submit()
    else:
        world.submit()
        world.step()
    assert kinds(world.step(Operator("sleep", "m"))) == ["Note"]
    assert world.failed == []


def test_jobs_of_a_removed_model_fail() -> None:
    world = World.of(entry("a"), entry("b"))
    world.submit("a")
    world.step(Configured({"b": entry("b")}))
    assert [(action.code, action.jobs) for action in world.failed] == [("model_removed", "fail")]
