"""Workers, leaders and whole machines that are restarted: no failure of a model, unless it happens with every load."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.events import Elected
from controller.retry import WORKER_DEATHS
from controller.state import Memory
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import World, entry, kinds


def loading(world: World) -> str:
    """Jobs wait, and the model loads for them."""
    world.submit(jobs=2)
    world.step()
    (replica,) = world.wanted()
    world.report(replica, ReplicaState.RESTORING)
    world.step()
    return replica


def serving(world: World) -> str:
    """The same, one step on: they run, and others wait."""
    replica = loading(world)
    world.ready(replica, in_flight=2)
    world.step()
    return replica


def kill_worker(world: World, boot: int) -> None:
    """Dead, and back before its heartbeat has expired."""
    world.add_worker("w1", boot=f"w1-boot-{boot}")


def stop_worker(world: World, boot: int) -> None:
    world.worker_leaves("w1")
    world.add_worker("w1", boot=f"w1-boot-{boot}")


def kill_all(world: World, boot: int) -> None:
    """The machine lost power: the next leader remembers nothing."""
    kill_worker(world, boot)
    world.memory = Memory()
    world.step(Elected(boot))


def stop_all(world: World, boot: int) -> None:
    stop_worker(world, boot)
    world.memory = Memory()
    world.step(Elected(boot))


Restart = Callable[[World, int], None]


@pytest.mark.parametrize("restart", [kill_worker, stop_worker, kill_all, stop_all])
def test_any_number_of_restarts_while_it_served_is_no_failed_load(restart: Restart) -> None:
    world = World.of(entry(load_attempts=1))
    for boot in range(2, 9):
        serving(world)
        restart(world, boot)
        world.pass_s(1)
        (again,) = world.wanted()
        assert (world.want_of(again).attempt, world.want_of(again).deaths) == (1, 0)
        assert world.want_of(again).boot == f"w1-boot-{boot}"
    assert world.failed == []
    assert world.statuses == {}


@pytest.mark.parametrize("restart", [stop_worker, stop_all])
def test_any_number_of_stops_while_it_loads_is_no_failed_load(restart: Restart) -> None:
    world = World.of(entry(load_attempts=1))
    for boot in range(2, 9):
        loading(world)
        restart(world, boot)
        world.pass_s(1)
        (again,) = world.wanted()
        assert world.want_of(again).deaths == 0
    assert world.failed == []


@pytest.mark.parametrize("restart", [kill_worker, kill_all])
def test_a_worker_that_dies_in_a_load_spends_no_attempt_until_it_is_three_in_a_row(restart: Restart) -> None:
    world = World.of(entry(load_attempts=1))
    for boot in range(2, WORKER_DEATHS + 1):
        loading(world)
        restart(world, boot)
        world.pass_s(1)
        (again,) = world.wanted()
        assert (world.want_of(again).attempt, world.want_of(again).deaths) == (1, boot - 1)
        assert world.failed == []
    loading(world)
    restart(world, 9)
    world.pass_s(1)
    assert world.wanted() == []
    assert [(action.code, action.jobs) for action in world.failed] == [("model_load_failed", "count")]
    assert "m" in world.statuses


def test_a_load_that_succeeds_in_between_begins_the_count_anew() -> None:
    world = World.of(entry())
    for boot in range(2, 10, 2):
        loading(world)
        kill_worker(world, boot)
        world.step()
        serving(world)
        kill_worker(world, boot + 1)
        world.step()
    assert world.failed == []


def test_so_does_a_load_that_fails_by_itself() -> None:
    world = World.of(entry(load_attempts=2))
    loading(world)
    kill_worker(world, 2)
    world.step()
    world.fails(world.wanted()[0], FailureReason.ENGINE_EXITED)
    world.step()
    (again,) = world.wanted()
    assert (world.want_of(again).attempt, world.want_of(again).deaths) == (2, 0)


def test_an_attempt_that_failed_stays_spent_when_a_worker_dies_in_the_next() -> None:
    world = World.of(entry(load_attempts=2))
    world.fails(loading(world), FailureReason.ENGINE_EXITED)
    world.step()
    kill_worker(world, 2)
    world.step()
    (again,) = world.wanted()
    assert (world.want_of(again).attempt, world.want_of(again).deaths) == (2, 1)
    world.fails(again, FailureReason.ENGINE_EXITED)
    world.step()
    assert [action.jobs for action in world.failed] == ["count"]


def test_deaths_are_counted_while_no_worker_is_there_to_try_again() -> None:
    world = World.of(entry())
    for boot in range(2, WORKER_DEATHS + 2):
        loading(world)
        world.lose_worker("w1")
        world.step()
        assert world.wanted() == []
        world.add_worker("w1", boot=f"w1-boot-{boot}")
        world.step()
    assert [action.jobs for action in world.failed] == ["count"]


def test_a_pinned_model_that_kills_every_worker_has_to_rest_though_nobody_waits() -> None:
    world = World.of(entry(min_replicas=1, failure_memory_s=30))
    for boot in range(2, WORKER_DEATHS + 2):
        world.report(world.wanted()[0], ReplicaState.RESTORING)
        kill_worker(world, boot)
        world.step()
    assert world.wanted() == []
    world.pass_s(29)
    assert world.wanted() == []
    world.pass_s(2)
    assert len(world.wanted()) == 1


def test_last_words_of_another_run_say_nothing() -> None:
    """It restarted twice between two looks: what died with the first of them is not known, and taken for a load."""
    world = World.of(entry())
    serving(world)
    kill_worker(world, 2)
    kill_worker(world, 3)
    world.step()
    assert world.want_of(world.wanted()[0]).deaths == 1


def test_with_nobody_waiting_a_restart_leaves_the_model_cold() -> None:
    world = World.of(entry())
    world.wake()
    world.pass_s(20)  # longer ago than a new leader takes for unanswered
    stop_all(world, 2)
    assert world.wanted() == []
    assert kinds(world.pass_s(10)) == []


def test_a_term_that_is_begun_again_gives_no_replica_the_id_of_another() -> None:
    """Redis went away during the election, or the leader was stopped for longer than it may trust its term."""
    world = World.of(entry("m"))
    first = world.wake()
    world.lose_worker("w1")
    world.wants.clear()
    world.step(Elected(world.memory.term))
    world.add_worker("w1", boot="w1-boot-2")
    world.ask()
    world.step()
    (second,) = world.wanted()
    assert second != first
