"""The configuration changes while everything runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controller.events import Configured, Elected, RedisBack, RedisLost
from rewarm.messages import CatalogueEntry
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import GIB, World, entry, kinds


def _reload(world: World, *entries: CatalogueEntry) -> list[str]:
    return [k for k in kinds(world.step(Configured({e.model: e for e in entries}))) if k != "Note"]


def test_policy_applies_at_once_without_a_new_replica() -> None:
    world = World.of(entry(idle_after_s=600))
    replica = world.wake()
    assert _reload(world, entry(idle_after_s=5)) == ["PublishCatalogue"]
    assert world.wanted() == [replica]
    assert kinds(world.pass_s(6)) == ["Stop"]


def test_a_new_specification_starts_first_and_the_old_one_leaves_when_it_is_ready() -> None:
    world = World.of(entry(memory=4 * GIB))
    old = world.wake()
    assert _reload(world, entry(memory=4 * GIB, spec_hash="h2")) == ["PublishCatalogue", "Start"]
    (new,) = set(world.wanted()) - {old}
    world.report(new, ReplicaState.VERIFYING)
    assert world.pass_s(1) == [], "not before its answer is verified"
    world.ready(new)
    assert kinds(world.step()) == ["Stop"]
    assert world.stopping() == [old]
    assert world.want_of(old).reason == "replaced"
    world.report(old, ReplicaState.STOPPED)
    assert kinds(world.step()) == ["Forget"]
    assert world.pass_s(1) == []
    assert world.wanted() == [new]


def test_where_both_do_not_fit_the_old_one_drains_first() -> None:
    world = World.of(entry(memory=10 * GIB), memory=16 * GIB)
    old = world.wake()
    _use_memory(world, 10 * GIB)
    assert _reload(world, entry(memory=10 * GIB, spec_hash="h2")) == ["PublishCatalogue", "Stop"]
    assert world.stopping() == [old]
    world.report(old, ReplicaState.DRAINING)
    assert [k for k in kinds(world.pass_s(1)) if k != "Note"] == []
    world.report(old, ReplicaState.STOPPED)
    _use_memory(world, 0)
    assert sorted(kinds(world.step())) == ["Forget", "Start"]


def test_a_drain_for_a_new_specification_is_not_turned_back_by_a_request() -> None:
    world = World.of(entry(memory=10 * GIB), memory=16 * GIB)
    old = world.wake()
    _use_memory(world, 10 * GIB)
    _reload(world, entry(memory=10 * GIB, spec_hash="h2"))
    world.report(old, ReplicaState.DRAINING)
    world.ask()
    world.step()
    assert world.stopping() == [old]


def test_a_load_of_the_old_specification_is_given_up() -> None:
    world = World.of(entry())
    world.ask()
    world.step()
    (old,) = world.wanted()
    world.report(old, ReplicaState.RESTORING)
    _reload(world, entry(spec_hash="h2"))
    world.step()
    assert old in world.stopping()
    (new,) = world.wanted()
    assert world.want_of(new).spec_hash == "h2"


def test_a_new_specification_that_fails_leaves_the_old_one_serving() -> None:
    world = World.of(entry(load_attempts=1, failure_memory_s=30))
    old = world.wake()
    _reload(world, entry(spec_hash="h2", load_attempts=1, failure_memory_s=30))
    (new,) = set(world.wanted()) - {old}
    world.fails(new, FailureReason.START_REFUSED)
    assert sorted(kinds(world.step())) == ["Forget", "SetStatus"]
    assert world.wanted() == [old]
    world.ask()
    assert world.pass_s(5) == [], "served by the old one; the new one rests"
    assert world.failed == []


def test_a_pair_is_replaced_one_by_one() -> None:
    world = World.of(entry(min_replicas=2, max_replicas=2), workers=3)
    for replica in world.wanted():
        world.ready(replica)
    old = set(world.wanted())
    changed = entry(min_replicas=2, max_replicas=2, spec_hash="h2")
    _reload(world, changed)
    for _ in range(20):
        assert len(world.wanted()) <= 3, "one more than max_replicas, no two"
        ready = [r for r in world.wanted() if world.reports[world.want_of(r).worker].get(r)]
        assert len(ready) >= 2 or set(ready) <= old, "never fewer than before serve"
        for replica in world.wanted():
            world.ready(replica)
        for replica in world.stopping():
            world.report(replica, ReplicaState.STOPPED)
        world.pass_s(1)
    assert len(world.wanted()) == 2
    assert all(world.want_of(r).spec_hash == "h2" for r in world.wanted())


def test_a_removed_model_fails_its_queue_and_drains() -> None:
    world = World.of(entry("m"), entry("other"))
    replica = world.wake()
    world.ask("m", tickets=3)
    assert sorted(_reload(world, entry("other"))) == ["FailWaiting", "PublishCatalogue", "Stop"]
    assert world.failed[0].code == "model_removed"
    assert world.want_of(replica).reason == "removed"
    world.report(replica, ReplicaState.STOPPED)
    assert kinds(world.step()) == ["Forget"]


@pytest.mark.parametrize("come", [World.ask, World.submit])
def test_whoever_comes_to_the_queue_of_a_removed_model_is_told_so(come: Callable[[World, str], None]) -> None:
    """A job that was drained, a gateway that has not heard yet."""
    world = World.of(entry("m"))
    _reload(world)
    world.pass_s(3600)
    come(world, "m")
    assert kinds(world.step()) == ["FailWaiting"]
    assert (world.failed[-1].model, world.failed[-1].code, world.failed[-1].jobs) == ("m", "model_removed", "fail")
    assert world.step() == [], "once, and then its queue is empty"


def test_the_next_leader_fails_what_the_last_one_did_not_come_to() -> None:
    """It died between the catalogue and the queues. What a new leader finds is not its own catalogue yet."""
    world = World.of(entry("m"))
    world.submit("m")
    world.catalogue.clear()
    world.step(Elected(2))
    assert world.pass_s(60) == [], "nobody knows yet what is to be there"
    assert _reload(world) == ["PublishCatalogue", "FailWaiting"]


def test_a_redis_that_came_back_without_its_last_second_fails_nobody() -> None:
    world = World.of(entry("m"))
    world.step(RedisLost())
    world.catalogue.clear()
    world.submit("m")
    assert world.step(RedisBack()) == []
    assert world.step() == []


def test_a_model_that_comes_back_is_cold() -> None:
    world = World.of(entry("m"))
    world.wake()
    _reload(world)
    world.report(world.stopping()[0], ReplicaState.STOPPED)
    world.step()
    assert _reload(world, entry("m")) == ["PublishCatalogue"]
    assert world.pass_s(1) == []


def test_a_new_specification_gets_a_new_chance() -> None:
    world = World.of(entry(load_attempts=1, failure_memory_s=600))
    world.ask()
    world.step()
    world.fails(world.wanted()[0], FailureReason.WEIGHTS_MISSING)
    world.step()
    assert "ForgetStatus" in _reload(world, entry(spec_hash="h2"))
    world.ask()
    assert kinds(world.pass_s(1)) == ["Start"]


def test_a_lower_max_replicas_stops_the_surplus() -> None:
    world = World.of(entry(max_replicas=3), workers=3)
    world.ask(tickets=100)
    world.step()
    world.answer_all()
    one, two, three = world.wanted()
    world.ready(one, in_flight=2)
    world.ready(two, in_flight=1)
    world.report(three, ReplicaState.RESTORING)
    _reload(world, entry(max_replicas=1))
    assert world.wanted() == [one], "what loads goes first, then what runs least"


def _use_memory(world: World, used: int) -> None:
    world.set_free("w1", world.workers["w1"].devices[0].budget_bytes - used)
