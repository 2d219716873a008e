"""From zero to one, and to more."""

from __future__ import annotations

import msgspec

from controller.events import Operator
from rewarm.states import ReplicaState
from tests.controller.fleetview import GIB, World, entry, kinds


def test_a_waiting_ticket_starts_one_replica() -> None:
    world = World.of(entry())
    world.ask()
    assert kinds(world.step()) == ["Start"]
    assert len(world.wanted()) == 1
    assert world.want_of(world.wanted()[0]).reason == "1 waiting"


def test_two_cold_requests_at_once_are_one_load() -> None:
    world = World.of(entry())
    world.ask(tickets=2)
    world.step()
    world.ask(tickets=5)
    assert world.pass_s(0.01) == []
    assert len(world.wanted()) == 1


def test_demand_counts_although_its_ticket_has_vanished_between_two_looks() -> None:
    world = World.of(entry())
    world.ask()
    world.answer_all()  # the client is gone before anybody looked
    assert kinds(world.step()) == ["Start"]


def test_demand_is_answered_once() -> None:
    world = World.of(entry(idle_after_s=5))
    replica = world.wake()
    world.pass_s(6)
    assert world.stopping() == [replica]
    world.report(replica, ReplicaState.STOPPED)
    assert kinds(world.step()) == ["Forget"]
    assert world.pass_s(60) == [], "the demand of before must not wake it again"


def test_nobody_asks_nothing_starts() -> None:
    world = World.of(entry())
    assert world.pass_s(100) == []


def test_min_replicas_run_without_demand() -> None:
    world = World.of(entry(min_replicas=2, max_replicas=3), workers=2)
    assert len(world.wanted()) == 2
    assert {world.want_of(r).worker for r in world.wanted()} == {"w1", "w2"}


def test_more_replicas_by_waiting_tickets_per_slot() -> None:
    world = World.of(entry(slots=4, scale_up_waiting_per_slot=2.0, max_replicas=3), workers=3)
    world.ask(tickets=8)
    world.step()
    assert len(world.wanted()) == 1, "8 waiting are what one replica of 4 slots may have"
    world.ask(tickets=1)
    world.step()
    assert len(world.wanted()) == 2
    world.ask(tickets=1000)
    world.step()
    assert len(world.wanted()) == 3, "max_replicas"


def test_replicas_spread_over_workers() -> None:
    world = World.of(entry(max_replicas=3), workers=3)
    world.ask(tickets=100)
    world.step()
    assert {world.want_of(r).worker for r in world.wanted()} == {"w1", "w2", "w3"}


def test_a_worker_without_room_is_passed_over() -> None:
    world = World.of(entry(memory=8 * GIB), workers=0)
    world.add_worker("small", memory=4 * GIB)
    world.add_worker("big", memory=16 * GIB)
    world.ask()
    world.step()
    assert world.want_of(world.wanted()[0]).worker == "big"


def test_two_starts_in_one_look_do_not_count_the_same_memory_twice() -> None:
    world = World.of(entry("a", memory=10 * GIB), entry("b", memory=10 * GIB), memory=16 * GIB)
    world.ask("a")
    world.ask("b")
    world.step()
    assert len(world.wanted("a")) == 1
    assert world.wanted("b") == []
    world.step()
    assert world.wanted("b") == [], "a's want is not in the worker's ledger yet, and counts all the same"


def test_what_can_never_fit_is_left_to_the_agent_to_refuse() -> None:
    """It alone knows the arithmetic of weights, cache and reserve that the message shows."""
    world = World.of(entry(memory=64 * GIB), memory=16 * GIB)
    world.ask()
    assert kinds(world.step()) == ["Start"]


def test_without_any_worker_the_start_is_owed_and_then_fails_with_words() -> None:
    world = World.of(entry(), workers=0)
    world.ask()
    assert kinds(world.step()) == []
    assert "no worker" in world.explanations["m"].text
    assert world.pass_s(30) == []
    world.pass_s(31)
    assert [f.code for f in world.failed] == ["model_load_failed"]
    assert "no worker" in world.failed[0].message
    world.add_worker("late")
    world.ask()
    assert "Start" in kinds(world.step()), "the failure is forgotten as soon as there is a worker"


def test_an_owed_start_happens_when_a_worker_comes() -> None:
    world = World.of(entry(), workers=0)
    world.ask()
    world.step()
    world.answer_all()  # the client left; the load outlives it
    world.add_worker("w1")
    assert kinds(world.pass_s(1)) == ["Start"]


def test_a_draining_worker_gets_nothing_new() -> None:
    world = World.of(entry(), workers=2)
    world.workers["w1"] = msgspec.structs.replace(world.workers["w1"], draining=True)
    world.ask()
    world.step()
    assert world.want_of(world.wanted()[0]).worker == "w2"


def test_wake_without_any_request() -> None:
    world = World.of(entry())
    assert kinds(world.step(Operator("wake", "m"))) == ["Start"]
    assert kinds(world.step(Operator("wake", "m"))) == [], "it is on its way already"


def test_waking_an_unknown_model_only_says_so() -> None:
    world = World.of(entry())
    assert kinds(world.step(Operator("wake", "nobody"))) == ["Note"]


def test_a_load_tells_its_worker_whether_somebody_waits_for_it() -> None:
    """Only then is it not held back for what is served beside it."""
    world = World.of(entry("asked"), entry("woken"), entry("kept", min_replicas=1))
    world.ask("asked")
    world.step()
    world.step(Operator("wake", "woken"))
    waited_for = {model: world.want_of(*world.wanted(model)).waited_for for model in ("asked", "woken", "kept")}
    assert waited_for == {"asked": True, "woken": False, "kept": False}


def test_who_comes_to_wait_during_a_load_and_who_leaves_changes_that() -> None:
    world = World.of(entry())
    world.step(Operator("wake", "m"))
    (replica,) = world.wanted()
    world.report(replica, ReplicaState.RESTORING)
    world.submit()
    assert kinds(world.step()) == ["Keep"]
    assert world.want_of(replica).waited_for, "a job waits as well"
    assert kinds(world.step()) == [], "once"
    world.jobs.clear()
    assert kinds(world.step()) == ["Keep"]
    assert not world.want_of(replica).waited_for
    world.ready(replica)
    world.ask()
    assert kinds(world.step()) == [], "it is up: nothing is held back any more"


def test_an_operators_wake_waits_for_room_or_a_worker_as_long_as_it_takes() -> None:
    world = World.of(entry("m"), workers=0)
    world.step(Operator("wake", "m"))
    world.pass_s(3600)
    assert world.failed == []
    assert "m" in world.explanations, "and says what for"
    world.add_worker("w1")
    assert kinds(world.pass_s(1)) == ["Start"]
