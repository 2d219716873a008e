"""What follows when a replica fails, or its worker does."""

from __future__ import annotations

import msgspec
import pytest

from controller.breaker import BLAMELESS
from controller.events import Elected, Operator, RedisBack, RedisLost
from controller.retry import Kind, backoff_ms, judge, rest_ms
from controller.state import Memory
from rewarm.messages import Failure, ModelPolicy
from rewarm.states import PERMANENT, FailureReason, ReplicaState
from tests.controller.fleetview import GIB, World, entry, kinds

PASSING = sorted(set(FailureReason) - PERMANENT)


def _load(world: World) -> str:
    """Ask and start; the one replica that is on its way."""
    world.ask()
    world.step()
    (replica,) = world.wanted()
    return replica


@pytest.mark.parametrize("reason", PASSING)
def test_a_failed_load_gets_one_more_attempt_after_a_backoff(reason: FailureReason) -> None:
    world = World.of(entry(load_attempts=2, retry_backoff_s=1))
    first = _load(world)
    world.fails(first, reason)
    remembered = [] if reason in BLAMELESS else ["SetStatus"]  # of this worker, see controller.breaker
    assert sorted(kinds(world.step())) == sorted(["Forget", "Start", *remembered])
    (second,) = world.wanted()
    want = world.want_of(second)
    assert want.attempt == 2
    assert 500 <= want.not_before_ms - world.now_ms <= 1500
    assert world.failed == []

    world.fails(second, reason)
    assert sorted(kinds(world.step())) == ["FailWaiting", "Forget", "SetStatus"]
    assert world.failed[0].code == "model_load_failed"
    assert world.failed[0].failure is not None
    assert world.failed[0].failure.reason is reason


@pytest.mark.parametrize("reason", sorted(PERMANENT))
def test_what_a_second_attempt_cannot_change_fails_at_once(reason: FailureReason) -> None:
    world = World.of(entry(load_attempts=5))
    world.fails(_load(world), reason, "the file is not there")
    assert sorted(kinds(world.step())) == ["FailWaiting", "Forget", "SetStatus"]
    assert "the file is not there" in world.failed[0].message


def test_what_never_fits_here_may_fit_on_a_larger_worker() -> None:
    world = World.of(entry(), workers=0)
    world.add_worker("a", memory=8 * GIB)
    first = _load(world)
    world.add_worker("b", memory=64 * GIB)
    world.fails(first, FailureReason.NEVER_FITS)
    world.step()
    assert [world.want_of(r).worker for r in world.wanted()] == ["b"]


def test_the_retry_prefers_another_worker() -> None:
    world = World.of(entry(), workers=2)
    first = _load(world)
    world.fails(first, FailureReason.ENGINE_EXITED)
    before = world.want_of(first).worker
    world.step()
    (second,) = world.wanted()
    assert world.want_of(second).worker != before


def test_while_the_failure_is_remembered_requests_fail_at_once() -> None:
    world = World.of(entry(load_attempts=1, failure_memory_s=30))
    world.fails(_load(world), FailureReason.STALLED)
    world.step()
    world.now_ms += 10_000
    world.ask()
    assert kinds(world.step()) == ["FailWaiting"]
    world.now_ms += 21_000
    assert world.step() == [], "demand of the time of failure was answered by the failure"
    world.ask()
    assert kinds(world.step()) == ["Start"], "the next demand tries again"


def test_a_success_forgets_the_failure() -> None:
    world = World.of(entry(load_attempts=1, failure_memory_s=30))
    world.fails(_load(world), FailureReason.STALLED)
    world.step()
    world.now_ms += 31_000
    world.ask()
    world.step()
    (replica,) = world.wanted()
    world.ready(replica)
    assert "ForgetStatus" in kinds(world.step())
    assert world.statuses == {}


def test_wake_tries_again_although_the_failure_is_remembered() -> None:
    world = World.of(entry(load_attempts=1))
    world.fails(_load(world), FailureReason.STALLED)
    world.step()
    assert sorted(kinds(world.step(Operator("wake", "m")))) == ["ForgetStatus", "Start"]


def test_an_engine_that_dies_while_nobody_waits_is_just_gone() -> None:
    world = World.of(entry())
    replica = world.wake()
    world.report(
        replica,
        ReplicaState.FAILED,
        failure=Failure(reason=FailureReason.ENGINE_EXITED, message="killed", phase=ReplicaState.READY),
    )
    assert kinds(world.step()) == ["Forget"]
    assert world.pass_s(100) == []
    assert world.statuses == {}


def test_an_engine_that_dies_while_somebody_waits_is_replaced() -> None:
    world = World.of(entry(load_attempts=1))
    replica = world.wake()
    world.report(
        replica,
        ReplicaState.FAILED,
        failure=Failure(reason=FailureReason.ENGINE_EXITED, message="killed", phase=ReplicaState.READY),
    )
    world.ask()
    assert sorted(kinds(world.step())) == ["Forget", "Start"]
    assert world.want_of(world.wanted()[0]).attempt == 1


def test_a_failed_scale_up_does_not_fail_those_whom_another_replica_serves() -> None:
    world = World.of(entry(max_replicas=2, load_attempts=1), workers=2)
    one = world.wake()
    world.ask(tickets=100)
    world.step()
    (two,) = set(world.wanted()) - {one}
    world.fails(two, FailureReason.OUT_OF_MEMORY)
    assert sorted(kinds(world.step())) == ["Forget", "SetStatus"]
    assert world.pass_s(1) == [], "and it is not tried again at once"
    assert world.wanted() == [one]


def test_a_broken_pinned_model_is_tried_ever_more_rarely() -> None:
    world = World.of(entry(min_replicas=1, load_attempts=1, failure_memory_s=10))
    gaps = []
    last = world.now_ms
    for _ in range(4):
        world.fails(world.wanted()[0], FailureReason.STALLED)
        world.step()
        while not world.wanted():
            world.pass_s(1)
        gaps.append((world.now_ms - last) // 1000)
        last = world.now_ms
    assert gaps == [10, 20, 40, 80]


def test_a_lost_worker_s_waiting_move_to_another_one() -> None:
    world = World.of(entry(), workers=2)
    replica = world.wake()
    gone = world.want_of(replica).worker
    world.step()
    world.ask()
    world.lose_worker(gone)
    assert sorted(kinds(world.step())) == ["Forget", "Start"]
    (other,) = world.wanted()
    assert world.want_of(other).worker != gone


def test_a_lost_worker_with_nobody_waiting_is_forgotten() -> None:
    world = World.of(entry())
    world.wake()
    world.step()
    world.lose_worker("w1")
    assert kinds(world.step()) == ["Forget"]
    world.add_worker("w1", boot="w1-boot-2")
    assert world.pass_s(1) == []


def test_a_worker_that_dies_with_every_load_ends_in_a_verdict() -> None:
    """Otherwise the want alone would make each new agent load, and die, again."""
    world = World.of(entry(load_attempts=2))
    _load(world)
    world.step()
    for boot in range(2, 5):
        world.add_worker("w1", boot=f"w1-boot-{boot}")
        world.pass_s(3)
        if world.failed:
            break
    assert [f.code for f in world.failed] == ["model_load_failed"]
    assert world.wanted() == []


def test_a_want_names_the_run_of_the_agent_it_was_decided_about() -> None:
    """So that an agent started since leaves it alone, and a new leader too knows that the replica went with the old
    one."""
    world = World.of(entry())
    replica = world.wake()
    assert world.want_of(replica).boot == world.workers["w1"].boot
    world.memory = Memory()
    world.add_worker("w1", boot="w1-boot-2")
    world.ask()
    world.step(Elected(2))
    world.pass_s(20)
    (again,) = world.wanted()
    assert again != replica
    assert world.want_of(again).boot == "w1-boot-2"


def test_absence_proves_nothing_while_redis_has_only_just_come_back() -> None:
    world = World.of(entry())
    replica = world.wake()
    beat = world.workers["w1"]
    world.step(RedisLost())
    reports = world.reports["w1"]
    world.lose_worker("w1")
    assert world.step(RedisBack()) == []
    assert world.pass_s(4) == []
    world.workers["w1"], world.reports["w1"] = beat, reports
    assert world.pass_s(2) == []
    assert world.wanted() == [replica]


def test_a_worker_that_stays_away_after_that_is_lost() -> None:
    world = World.of(entry())
    world.wake()
    world.step(RedisLost())
    world.lose_worker("w1")
    world.step(RedisBack())
    assert kinds(world.pass_s(6)) == ["Forget"]


def test_a_new_leader_does_not_take_an_unseen_worker_for_dead_at_once() -> None:
    world = World.of(entry())
    replica = world.wake()
    beat, reports = world.workers["w1"], world.reports["w1"]
    world.lose_worker("w1")
    world.memory = Memory()
    assert world.step(Elected(2)) == []
    world.workers["w1"], world.reports["w1"] = beat, reports
    assert world.pass_s(10) == []
    assert world.wanted() == [replica]


def test_a_replica_that_runs_without_a_want_is_adopted() -> None:
    """After Redis came back empty: the model is warm, why load it again."""
    world = World.of(entry())
    replica = world.wake()
    del world.wants["w1"][replica]
    world.memory = Memory()
    assert kinds(world.step(Elected(2))) == ["Keep"]
    assert world.wanted() == [replica]


def test_the_failure_s_time_and_attempt_are_the_leader_s() -> None:
    world = World.of(entry(load_attempts=1))
    world.fails(_load(world), FailureReason.STALLED)
    world.step()
    status = world.statuses["m"]
    assert status.failure is not None
    assert status.failure.at_ms == world.now_ms
    assert status.attempts == 1


class TestPolicy:
    """The table itself."""

    def _judge(self, reason: FailureReason, **given: object) -> Kind:
        failure = Failure(reason=reason, message="m", phase=ReplicaState.STARTING)
        known: dict[str, object] = {
            "attempt": 1,
            "was_ready": False,
            "waiting": 1,
            "policy": ModelPolicy(),
            "roomier": False,
            "jitter": 0.5,
        }
        return judge(failure, **{**known, **given}).kind  # type: ignore[arg-type]

    def test_backoff_doubles_and_is_bounded(self) -> None:
        policy = ModelPolicy(retry_backoff_s=1)
        assert [backoff_ms(policy, n, 0.5) for n in (1, 2, 3)] == [1000, 2000, 4000]
        assert backoff_ms(policy, 20, 0.5) == 60_000
        assert (backoff_ms(policy, 1, 0.0), backoff_ms(policy, 1, 1.0)) == (500, 1500)

    def test_rest_is_bounded(self) -> None:
        policy = ModelPolicy(failure_memory_s=30, load_attempts=2)
        assert rest_ms(policy, 2) == 30_000
        assert rest_ms(policy, 2000) == 30_000 * 64


def test_a_worker_that_leaves_takes_its_wants_with_it_and_the_waiting_move() -> None:
    world = World.of(entry(), workers=2)
    replica = world.wake()
    leaving = world.want_of(replica).worker
    world.workers[leaving] = msgspec.structs.replace(world.workers[leaving], draining=True)
    world.ask()
    assert sorted(kinds(world.step())) == ["Forget", "Start"]
    assert [world.want_of(r).worker for r in world.wanted()] != [leaving]
