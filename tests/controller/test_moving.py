"""Jobs whose model fails, or would be late, may go on down their chains; the leader says when, and to whom."""

from __future__ import annotations

import msgspec

from controller.actions import Action, MoveJobs
from rewarm.fallback import Chain, Failed, Switch, Waits, decide
from rewarm.messages import CatalogueEntry, Progress, RemoteSpec
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import World, entry


def remote(model: str) -> CatalogueEntry:
    return msgspec.structs.replace(entry(model), remote=RemoteSpec(url="https://x/v1"))


def moves(actions: list[Action]) -> list[MoveJobs]:
    return [action for action in actions if isinstance(action, MoveJobs)]


def failed(world: World, model: str = "m") -> list[MoveJobs]:
    """A job waits for the model, whose load fails for good."""
    world.submit(model)
    world.step()
    (replica,) = world.wanted(model)
    world.fails(replica, FailureReason.WEIGHTS_CORRUPT)
    return [move for move in moves(world.step()) if move.model == model]


def test_jobs_of_a_model_that_failed_may_go_on_in_the_same_round() -> None:
    world = World.of(entry(fallback=["b"]), entry("b"))
    (move,) = failed(world)
    assert (move.model, move.event) == ("m", Failed("model_load_failed"))
    step = decide(Chain("m", ("b",)), move.event, move.now_s, move.outlooks.__getitem__)
    assert isinstance(step, Switch) and step.chain.current == "b"
    assert [action for action in world.failed if action.model == "m"]  # those with nobody behind are told after


def test_as_long_as_the_failure_is_remembered_those_that_come_may_too() -> None:
    world = World.of(entry(fallback=["b"]), entry("b"))
    failed(world)
    assert moves(world.step())
    world.jobs.clear()
    assert not moves(world.step())


def test_nobody_is_sent_to_a_model_that_fails_itself() -> None:
    world = World.of(entry(fallback=["b"]), entry("b"))
    failed(world, "b")
    assert not failed(world)


def test_a_remote_model_can_always_take_them_and_is_never_started() -> None:
    world = World.of(entry(fallback=["far"]), remote("far"))
    (move,) = failed(world)
    assert move.outlooks["far"].ready_in_s == 0
    world.submit("far")
    world.step()
    assert world.wanted("far") == []


def test_the_fallback_of_one_may_be_the_start_of_another() -> None:
    """Jobs that were moved to ``b`` go on from there although ``b`` itself has no chain."""
    world = World.of(entry(fallback=["b", "c"]), entry("b"), entry("c"))
    (move,) = failed(world, "b")
    assert move.model == "b"


def test_a_model_without_any_chain_keeps_its_jobs() -> None:
    world = World.of(entry(), entry("b", fallback=["c"]), entry("c"))
    assert not failed(world)


def test_a_load_beyond_the_cut_over_lets_them_go_and_goes_on() -> None:
    world = World.of(entry(fallback=["b"], fallback_after_s=20), entry("b"))
    world.submit()
    world.step()
    (replica,) = world.wanted()
    far_off = Progress(model="m", replica=replica, phase=ReplicaState.RESTORING, eta_s=90.0)
    world.report(replica, ReplicaState.RESTORING, progress=far_off)
    (move,) = moves(world.step())
    assert isinstance(move.event, Waits) and (move.event.eta_s, move.event.cut_over_s) == (90.0, 20)
    assert world.wanted() == [replica] and not world.stopping()


def test_without_a_cut_over_a_job_waits_for_its_model() -> None:
    world = World.of(entry(fallback=["b"]), entry("b"))
    world.submit()
    world.step()
    assert not moves(world.step())
