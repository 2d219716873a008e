"""The leader places bases. Of an adapter it knows that it runs nowhere itself, and where its jobs go."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.actions import MoveJobs
from controller.events import Configured, Operator
from rewarm.fallback import Chain, Switch, decide
from rewarm.messages import CatalogueEntry
from rewarm.states import FailureReason
from tests.controller.fleetview import World, entry


def adapter(name: str = "tuned", base: str = "m", **policy: Any) -> CatalogueEntry:
    return msgspec.structs.replace(entry(name, **policy), base=base)


def test_nothing_is_ever_started_for_an_adapter() -> None:
    world = World.of(entry(), adapter(min_replicas=1))
    world.submit("m")
    world.step()
    assert len(world.wanted("m")) == 1
    assert world.wanted("tuned") == []


def test_a_model_that_becomes_an_adapter_stops_and_its_waiting_requests_are_told() -> None:
    world = World.of(entry(), entry("tuned"))
    world.ask("tuned")
    world.step()
    (replica,) = world.wanted("tuned")
    world.step(Configured({"m": entry(), "tuned": adapter()}, world.rules))
    assert world.failed[-1].model == "tuned" and "as an adapter of 'm'" in world.failed[-1].message
    assert world.stopping("tuned") == [replica]


def test_waking_an_adapter_wakes_its_base() -> None:
    world = World.of(entry(), adapter())
    world.step(Operator("wake", "tuned"))
    assert len(world.wanted("m")) == 1


def test_jobs_of_an_adapter_wait_with_its_base_and_go_on_with_it() -> None:
    world = World.of(entry(), adapter(fallback=["b"]), entry("b"), adapter("b-tuned", "b"))
    world.submit("m")
    world.step()
    (replica,) = world.wanted("m")
    world.fails(replica, FailureReason.WEIGHTS_CORRUPT)
    (move,) = [action for action in world.step() if isinstance(action, MoveJobs)]
    assert move.model == "m"
    step = decide(Chain("tuned", ("b",)), move.event, move.now_s, move.outlooks.__getitem__)
    assert isinstance(step, Switch) and step.chain.current == "b"
    assert move.outlooks["b-tuned"].obstacle == "", "another base's adapter may answer"
    assert {"m", "tuned"}.isdisjoint(move.outlooks), "whoever shares the base that failed cannot"
