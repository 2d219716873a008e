"""A cold model is woken while the fleet is quiet, to see that it can be; nobody has to leave for it."""

from __future__ import annotations

from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import GIB, World, entry

DAY_S = 86_400


def quiet(world: World) -> None:
    world.demand.clear()
    world.pass_s(61)


def canaried(**fields: object):  # type: ignore[no-untyped-def]
    return entry(canary_every_s=DAY_S, **fields)  # type: ignore[arg-type]


def test_a_cold_model_is_woken_when_nobody_needs_anything_and_goes_again() -> None:
    world = World.of(canaried())
    quiet(world)
    (replica,) = world.wanted()
    assert "canary" in world.want_of(replica).reason
    assert world.canaries["m"].state == "running"
    world.ready(replica, ready_at_ms=world.now_ms)
    world.step()
    assert world.canaries["m"].state == "passed"
    assert world.stopping() == [replica]
    assert world.want_of(replica).if_last_activity_ms is not None  # a request that comes now keeps it


def test_the_next_one_comes_a_day_later() -> None:
    world = World.of(canaried())
    quiet(world)
    (replica,) = world.wanted()
    world.ready(replica, ready_at_ms=world.now_ms)
    world.step()
    world.report(replica, ReplicaState.STOPPED)
    world.pass_s(DAY_S - 120)
    assert world.wanted() == []
    world.pass_s(240)
    assert len(world.wanted()) == 1


def test_a_model_without_the_setting_is_left_alone() -> None:
    world = World.of(entry())
    quiet(world)
    assert world.wanted() == []


def test_while_anything_loads_runs_or_was_just_asked_for_there_is_none() -> None:
    world = World.of(canaried(memory=GIB), entry("other", memory=GIB, idle_after_s=DAY_S))
    world.ask("other")
    world.step()
    (other,) = world.wanted("other")
    world.pass_s(61)
    assert world.wanted() == []  # it loads
    world.answer_all("other")
    world.ready(other, ready_at_ms=world.now_ms, in_flight=1)
    world.pass_s(61)
    assert world.wanted() == []  # it runs a request
    world.demand["other"] = world.now_ms
    world.ready(other, ready_at_ms=world.now_ms, in_flight=0)
    world.pass_s(59)
    assert world.wanted() == []  # it was asked for a minute ago
    world.pass_s(2)
    assert len(world.wanted()) == 1


def test_nobody_stops_for_it_and_it_is_not_started_where_it_may_not_fit() -> None:
    world = World.of(canaried(memory=10 * GIB), entry("other", memory=10 * GIB, idle_after_s=10 * DAY_S))
    other = world.wake("other")
    world.answer_all("other")
    world.ready(other, ready_at_ms=world.now_ms, need_bytes=10 * GIB)
    world.set_free("w1", 6 * GIB)
    quiet(world)
    assert world.wanted() == [] and world.stopping("other") == []


def test_one_at_a_time() -> None:
    world = World.of(canaried(), canaried(model="n"))
    quiet(world)
    assert len(world.wanted("m")) + len(world.wanted("n")) == 1
    world.pass_s(5)
    assert len(world.wanted("m")) + len(world.wanted("n")) == 1


def test_a_wake_that_somebody_asked_for_counts() -> None:
    world = World.of(canaried(idle_after_s=60))
    replica = world.wake()
    world.answer_all()
    world.ready(replica, ready_at_ms=world.now_ms)
    world.step()
    assert world.canaries["m"].state == "passed"
    world.pass_s(61)
    assert world.stopping() == [replica]  # idle
    world.report(replica, ReplicaState.STOPPED)
    quiet(world)
    assert world.wanted() == []


def test_one_that_fails_is_remembered_until_its_next_try() -> None:
    world = World.of(canaried(load_attempts=1, failure_memory_s=30, fallback=["n"]), entry("n"))
    quiet(world)
    (replica,) = world.wanted()
    world.fails(replica, FailureReason.WEIGHTS_CORRUPT, "truncated")
    world.step()
    world.step()
    canary = world.canaries["m"]
    assert (canary.state, canary.failures) == ("failed", 1) and "truncated" in canary.message
    assert world.statuses["m"].failed_until_ms > world.now_ms + 600_000
    world.pass_s(590)
    assert world.wanted() == []
    world.pass_s(20)
    (again,) = world.wanted()
    world.ready(again, ready_at_ms=world.now_ms)
    world.step()
    assert world.canaries["m"].state == "passed" and "m" not in world.statuses


def test_somebody_who_asks_meanwhile_keeps_it() -> None:
    world = World.of(canaried())
    quiet(world)
    (replica,) = world.wanted()
    world.pass_s(1)
    world.ask()
    world.ready(replica, ready_at_ms=world.now_ms)
    world.step()
    assert world.canaries["m"].state == "passed" and world.stopping() == []


def test_a_try_that_was_cut_short_tells_nothing_and_is_made_again() -> None:
    world = World.of(canaried())
    quiet(world)
    world.lose_worker("w1")
    world.pass_s(61)
    assert world.canaries["m"].state == "unknown" and "m" not in world.statuses
