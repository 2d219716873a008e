"""Down to zero: after quiet, with a drain, never under anybody's feet."""

from __future__ import annotations

import pytest

from controller.events import Elected, Operator, RedisBack, RedisLost
from controller.state import Memory
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import World, entry, kinds


def test_an_idle_replica_stops_conditionally_on_what_was_seen() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    seen = world.now_ms
    assert world.pass_s(59) == []
    assert kinds(world.pass_s(2)) == ["Stop"]
    want = world.want_of(replica)
    assert (want.state, want.reason, want.if_last_activity_ms) == (ReplicaState.STOPPED, "idle", seen)
    assert world.pass_s(1) == [], "said once"


def test_the_idle_clock_starts_at_the_last_completion() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    world.pass_s(50)
    world.ready(replica, ready_at_ms=world.now_ms - 50_000, last_activity_ms=world.now_ms)
    assert world.pass_s(50) == []
    assert kinds(world.pass_s(11)) == ["Stop"]


def test_demand_moves_the_idle_clock() -> None:
    world = World.of(entry(idle_after_s=60))
    world.wake()
    world.pass_s(59)
    world.demand["m"] = world.now_ms
    assert world.pass_s(59) == []
    assert kinds(world.pass_s(2)) == ["Stop"]


def test_a_loading_replica_is_never_idle() -> None:
    world = World.of(entry(idle_after_s=1))
    world.ask()
    world.step()
    world.answer_all()
    world.report(world.wanted()[0], ReplicaState.RESTORING)
    world.step()  # it tells that nobody waits any more
    assert world.pass_s(3600) == []


@pytest.mark.parametrize("busy", [{"in_flight": 1}, {"reserved": 1}])
def test_in_flight_is_not_idle(busy: dict[str, int]) -> None:
    world = World.of(entry(idle_after_s=1))
    replica = world.wake()
    world.ready(replica, ready_at_ms=1, last_activity_ms=1, **busy)
    assert world.pass_s(3600) == []


def test_min_replicas_stay() -> None:
    world = World.of(entry(min_replicas=1, idle_after_s=1))
    world.ready(world.wanted()[0])
    assert world.pass_s(3600) == []


def test_a_stop_that_was_overtaken_by_a_request_is_taken_back() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    world.pass_s(61)
    assert world.stopping() == [replica]
    world.ready(replica, ready_at_ms=1, last_activity_ms=world.now_ms, in_flight=1)  # the agent refused to stop
    assert kinds(world.pass_s(0.1)) == ["Keep"]
    assert world.wanted() == [replica]
    assert world.pass_s(59) == []


def test_a_request_during_the_drain_turns_it_back() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    world.pass_s(61)
    world.report(replica, ReplicaState.DRAINING)
    world.ask()
    assert kinds(world.step()) == ["Keep"]
    assert world.wanted() == [replica]


def test_a_drain_that_can_no_longer_turn_back_ends_in_a_new_start_by_the_agent() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    world.pass_s(61)
    world.report(replica, ReplicaState.DRAINING)
    world.ask()
    world.step()
    world.report(replica, ReplicaState.STOPPED)
    assert world.pass_s(1) == [], "wanted again: its agent starts it anew under the same want"
    assert world.wanted() == [replica]


def test_what_is_started_anew_so_has_all_its_attempts() -> None:
    world = World.of(entry(idle_after_s=60, load_attempts=2, retry_backoff_s=0))
    world.ask()
    world.step()
    world.fails(world.wanted()[0], FailureReason.ENGINE_EXITED)
    world.step()
    (replica,) = world.wanted()
    assert world.want_of(replica).attempt == 2
    world.ready(replica, ready_at_ms=1)
    world.answer_all()
    world.pass_s(61)
    world.report(replica, ReplicaState.DRAINING, ready_at_ms=1)
    world.ask()
    world.step()
    assert world.wanted() == [replica]
    assert world.want_of(replica).attempt == 1


def test_a_request_after_the_stop_starts_anew() -> None:
    world = World.of(entry(idle_after_s=60))
    replica = world.wake()
    world.pass_s(61)
    world.report(replica, ReplicaState.STOPPED)
    world.ask()
    assert sorted(kinds(world.step())) == ["Forget", "Start"]
    assert world.wanted() != [replica]


def test_with_light_load_on_several_replicas_one_goes_after_quiet() -> None:
    """Each gets a little, so no single one ever is idle for long: together they are one too many."""
    world = World.of(entry(max_replicas=2, idle_after_s=60, slots=4), workers=2)
    world.ask(tickets=100)
    world.step()
    world.answer_all()
    one, two = world.wanted()
    for _ in range(12):
        for replica in (one, two):
            world.ready(replica, ready_at_ms=1, last_activity_ms=world.now_ms - 500)
        if kinds(world.pass_s(6)) == ["Stop"]:
            break
    assert len(world.stopping()) == 1
    assert len(world.wanted()) == 1


def test_a_loaded_pair_stays() -> None:
    world = World.of(entry(max_replicas=2, idle_after_s=60, slots=4), workers=2)
    world.ask(tickets=100)
    world.step()
    world.answer_all()
    for _ in range(30):
        for number, replica in enumerate(world.wanted()):
            world.ready(replica, ready_at_ms=1, last_activity_ms=world.now_ms, in_flight=3 * number)
        world.pass_s(6)
    assert len(world.wanted()) == 2, "3 running are more than half of one replica's 4 slots"


def test_sleep_drains_at_once() -> None:
    world = World.of(entry())
    replica = world.wake()
    assert kinds(world.step(Operator("sleep", "m"))) == ["Stop"]
    want = world.want_of(replica)
    assert (want.reason, want.if_last_activity_ms) == ("sleep", None)
    assert world.pass_s(10) == []


def test_sleep_cancels_a_load_that_nobody_waits_for() -> None:
    world = World.of(entry())
    world.ask()
    world.step()
    world.answer_all()  # the client has left
    assert kinds(world.step(Operator("sleep", "m"))) == ["Stop"]
    assert world.pass_s(1) == [], "the demand of before is answered"
    assert world.statuses == {}, "a cancelled load is no failure to remember"


def test_sleep_is_refused_while_requests_wait() -> None:
    """The gateway says so at once; here one came in between."""
    world = World.of(entry())
    world.ask()
    world.step()
    (replica,) = world.wanted()
    world.report(replica, ReplicaState.RESTORING)
    assert kinds(world.step(Operator("sleep", "m"))) == ["Note"]
    assert (world.failed, world.wanted()) == ([], [replica])
    world.ready(replica)
    assert kinds(world.step(Operator("sleep", "m"))) == ["Note"], "it would be woken again at once"
    world.answer_all()
    assert kinds(world.step(Operator("sleep", "m"))) == ["Stop"]


def test_sleep_of_a_pinned_model_is_refused() -> None:
    world = World.of(entry(min_replicas=1))
    world.ready(world.wanted()[0])
    assert kinds(world.step(Operator("sleep", "m"))) == ["Note"]


def test_drain_of_a_replica_moves_the_model_elsewhere() -> None:
    world = World.of(entry(), workers=2)
    replica = world.wake()
    world.step(Operator("drain", replica))
    assert world.stopping() == [replica]
    world.ask()
    world.step()
    assert world.stopping() == [replica], "a drain that a person asked for is not taken back"
    assert len(world.wanted()) == 1


def test_drain_of_a_worker_empties_it_and_keeps_it_empty_until_it_restarts() -> None:
    world = World.of(entry(), workers=1)
    replica = world.wake()
    world.step(Operator("drain", "w1"))
    assert world.stopping() == [replica]
    world.report(replica, ReplicaState.STOPPED)
    world.ask()
    world.step()
    assert world.wanted() == []
    world.add_worker("w1", boot="w1-boot-2")
    world.pass_s(1)
    assert len(world.wanted()) == 1


def test_a_drained_worker_stays_empty_under_the_next_leader_and_while_it_is_out_of_sight() -> None:
    world = World.of(entry(), workers=1)
    world.step(Operator("drain", "w1"))
    boot = world.workers["w1"].boot
    world.lose_worker("w1")
    world.pass_s(10)
    world.add_worker("w1", boot=boot)
    world.memory = Memory()
    world.step(Elected(2))
    world.ask()
    for _ in range(10):
        world.pass_s(1)
    assert (world.wanted(), world.cordons) == ([], {"w1": boot})
    world.add_worker("w1", boot="w1-boot-2")
    assert "Start" in kinds(world.pass_s(1))
    assert world.cordons == {}, "nothing is left of it"


def test_nothing_stops_while_redis_is_away_nor_right_after() -> None:
    world = World.of(entry(idle_after_s=60))
    world.wake()
    world.step(RedisLost())
    assert world.pass_s(3600) == []
    assert world.step(RedisBack()) == []
    assert world.pass_s(4) == []
    assert kinds(world.pass_s(2)) == ["Stop"]


def test_a_new_leader_carries_on_from_redis() -> None:
    world = World.of(entry(idle_after_s=60))
    world.wake()
    world.memory = Memory()
    world.step(Elected(2))
    assert world.pass_s(59) == []
    assert kinds(world.pass_s(2)) == ["Stop"]


def test_a_new_leader_does_not_answer_old_demand_again() -> None:
    world = World.of(entry(idle_after_s=60))
    world.demand["m"] = world.now_ms - 30_000
    world.memory = Memory()
    assert world.step(Elected(2)) == []


def test_a_new_leader_answers_demand_that_the_old_one_did_not_live_to_see() -> None:
    world = World.of(entry(idle_after_s=60))
    world.demand["m"] = world.now_ms - 6_000
    world.memory = Memory()
    assert kinds(world.step(Elected(2))) == ["Start"]


def test_after_a_restart_of_everything_models_that_nobody_asks_for_stay_cold() -> None:
    world = World.of(entry())
    world.wake()
    world.pass_s(250)
    world.add_worker("w1", boot="w1-boot-2")  # empty: its replicas died with the machine
    world.memory = Memory()
    assert kinds(world.step(Elected(2))) == ["Forget"]
    assert world.wanted() == []
