"""A model that fails on one worker: elsewhere first, then one probe at a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.breaker import BLAMELESS, failed, ready, shut
from rewarm.messages import Failure, ModelPolicy, ModelStatus
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import World, entry, kinds

POLICY = ModelPolicy(load_attempts=2, failure_memory_s=30)
NOW = 1_000_000


def failure(reason: FailureReason = FailureReason.ENGINE_EXITED) -> Failure:
    return Failure(reason=reason, message="it broke", phase=ReplicaState.STARTING)


def fail(status: ModelStatus | None, now_ms: int, reason: FailureReason = FailureReason.ENGINE_EXITED) -> ModelStatus:
    return failed(status, "m", "w1", failure(reason), POLICY, now_ms, ["w1", "w2"])


def test_closed_then_open_then_half_open_then_twice_as_long() -> None:
    once = fail(None, NOW)
    assert shut(once, (), NOW) == frozenset()
    twice = fail(once, NOW)
    assert shut(twice, (), NOW + 29_999) == {"w1"}
    assert shut(twice, (), NOW + 30_000) == frozenset(), "half-open"
    assert shut(twice, {"w1"}, NOW + 30_000) == {"w1"}, "one probe at a time"
    again = fail(twice, NOW + 40_000)
    assert shut(again, (), NOW + 40_000 + 59_999) == {"w1"}
    assert shut(again, (), NOW + 40_000 + 60_000) == frozenset()
    assert ready(again, "w1", NOW + 50_000).places == ()


def test_what_cannot_help_opens_at_once_and_what_says_nothing_never() -> None:
    assert shut(fail(None, NOW, FailureReason.WEIGHTS_MISSING), (), NOW) == {"w1"}
    for reason in BLAMELESS:
        assert fail(None, NOW, reason).places == ()


@given(st.lists(st.none() | st.sampled_from(FailureReason), max_size=40), st.integers(0, 10**6))
def test_it_always_opens_again_in_the_end_and_only_for_so_long(history: list[FailureReason | None], gap: int) -> None:
    """None: a load became ready."""
    status, now = ModelStatus(model="m"), NOW
    for event in history:
        now += gap
        status = ready(status, "w1", now) if event is None else fail(status, now, event)
        assert len(status.places) <= 1
    assert shut(status, (), now + 64 * 30_000) == frozenset()
    if history and history[-1] is None:
        assert shut(status, (), now) == frozenset()


@pytest.mark.parametrize("reason", [FailureReason.WEIGHTS_MISSING, FailureReason.ENGINE_EXITED])
def test_a_model_that_fails_on_one_worker_loads_on_another(reason: FailureReason) -> None:
    world = World.of(entry(load_attempts=2, failure_memory_s=30, retry_backoff_s=1), workers=2)
    world.ask()
    world.step()
    (first,) = world.wanted()
    bad = world.want_of(first).worker
    world.fails(first, reason)
    world.step()
    (second,) = world.wanted()
    assert world.want_of(second).worker != bad
    assert world.failed == []
    assert [place.worker for place in world.statuses["m"].places] == [bad]
    world.ready(second)
    world.answer_all()
    world.step()
    assert world.statuses["m"].failure is None


def test_the_next_wake_passes_an_open_breaker_over_and_a_probe_that_works_closes_it() -> None:
    world = World.of(entry(load_attempts=1, failure_memory_s=30, idle_after_s=5), workers=2)
    world.ask()
    world.step()
    (first,) = world.wanted()
    bad = world.want_of(first).worker
    world.fails(first, FailureReason.ENGINE_EXITED)
    world.step()
    world.answer_all()
    world.pass_s(29)
    good = ({"w1", "w2"} - {bad}).pop()
    world.statuses["m"] = ModelStatus(model="m", places=world.statuses["m"].places)  # as a whole it has not failed
    world.ask()
    world.step()
    assert [world.want_of(r).worker for r in world.wanted()] == [good]
    world.lose_worker(good)
    world.pass_s(20)
    (probe,) = world.wanted()
    assert world.want_of(probe).worker == bad, "half-open"
    world.ready(probe)
    world.answer_all()
    assert kinds(world.pass_s(1)) == ["ForgetStatus"]
