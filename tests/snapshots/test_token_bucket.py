"""The bandwidth limit, without a clock, and the threads that wait at it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots.errors import Cancelled
from snapshots.throttle import Throttle
from snapshots.token_bucket import TokenBucket


def test_a_burst_is_free_and_the_rest_is_paid_at_the_rate() -> None:
    bucket = TokenBucket(rate=100.0, burst=50.0)
    assert bucket.take(50, now=0.0) == 0.0
    assert bucket.take(100, now=0.0) == 1.0
    assert bucket.advance(now=0.5) == 0.5
    assert bucket.advance(now=1.0) == 0.0


def test_a_higher_limit_lets_go_of_who_waits_sooner_and_none_at_once() -> None:
    bucket = TokenBucket(rate=10.0, burst=0.0)
    assert bucket.take(100, now=0.0) == 10.0
    bucket.set_rate(100.0, now=0.0)
    assert bucket.debt_s() == 1.0
    bucket.set_rate(None, now=0.0)
    assert bucket.debt_s() == 0.0
    assert bucket.take(10**12, now=0.0) == 0.0


def test_a_limit_that_comes_later_does_not_charge_for_what_was_free() -> None:
    bucket = TokenBucket(rate=None, burst=0.0)
    bucket.take(10**9, now=0.0)
    bucket.set_rate(10.0, now=1.0)
    assert bucket.take(10, now=1.0) == 1.0


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_rate_that_would_never_end_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        TokenBucket(rate=1.0, burst=1.0).set_rate(rate, now=0.0)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 5)), min_size=1, max_size=50))
def test_whoever_waits_as_told_never_exceeds_burst_and_rate(steps: list[tuple[int, float]]) -> None:
    bucket, now, moved = TokenBucket(rate=100.0, burst=200.0), 0.0, 0
    for amount, pause in steps:
        now += pause
        now += bucket.take(amount, now)
        moved += amount
        assert moved <= 200.0 + 100.0 * now + 1e-6 * moved + 1e-6


def test_a_waiting_thread_goes_on_when_the_limit_is_lifted() -> None:
    throttle = Throttle(1.0)
    thread = threading.Thread(target=throttle.wait, args=(10**6,))
    thread.start()
    throttle.limit(None)
    thread.join(timeout=20)
    assert not thread.is_alive()


def test_a_waiting_thread_ends_when_it_is_cancelled() -> None:
    throttle, cancel, raised = Throttle(1.0), threading.Event(), threading.Event()

    def wait() -> None:
        with pytest.raises(Cancelled):
            throttle.wait(10**6, cancel)
        raised.set()

    thread = threading.Thread(target=wait)
    thread.start()
    cancel.set()
    throttle.wake()
    thread.join(timeout=20)
    assert raised.is_set()
