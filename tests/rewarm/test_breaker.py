"""The breaker of a model: a pure state machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rewarm import breaker
from rewarm.breaker import CLOSED, FAILURES, LONGEST_OPEN_S, OPEN_S, PROBE_S, Breaker, State, admit, failed, state


def broken(now_s: float = 0.0) -> Breaker:
    one = CLOSED
    for _ in range(FAILURES):
        one = failed(one, "worker_died", now_s)
    return one


def test_it_opens_after_failures_in_a_row() -> None:
    one = CLOSED
    for _ in range(FAILURES - 1):
        one = failed(one, "worker_died", 0.0)
    assert state(one, 0.0) is State.CLOSED
    assert state(breaker.succeeded(one), 0.0) is State.CLOSED and breaker.succeeded(one).failures == 0
    one = failed(one, "worker_died", 0.0)
    assert state(one, 0.0) is State.OPEN
    assert admit(one, OPEN_S / 2) is None
    assert one.reason == "worker_died"


def test_one_probe_decides() -> None:
    one = broken()
    probing = admit(one, OPEN_S)
    assert probing is not None and state(probing, OPEN_S) is State.HALF_OPEN
    assert admit(probing, OPEN_S + 1) is None  # one at a time
    assert breaker.succeeded(probing) == CLOSED
    again = failed(probing, "engine_stalled", OPEN_S + 1)
    assert admit(again, OPEN_S + 1 + OPEN_S) is None  # twice as long
    assert admit(again, OPEN_S + 1 + 2 * OPEN_S) is not None


def test_a_probe_that_tells_nothing_does_not_close_the_door_for_ever() -> None:
    probing = admit(broken(), OPEN_S)
    assert probing is not None
    assert admit(probing, OPEN_S + PROBE_S) is not None
    assert admit(breaker.given_up(probing), OPEN_S) is not None


def test_it_opens_at_once_for_as_long_as_the_other_side_asks() -> None:
    one = failed(CLOSED, "upstream_rate_limited", 0.0, retry_after_s=7.0)
    assert breaker.opens_in_s(one, 0.0) == 7.0
    assert breaker.opens_in_s(failed(CLOSED, "x", 0.0, retry_after_s=1e9), 0.0) == LONGEST_OPEN_S


def test_failures_of_requests_sent_before_it_opened_do_not_prolong_it() -> None:
    one = broken()
    assert failed(one, "worker_died", 1.0).open_until_s == one.open_until_s


@given(st.lists(st.tuples(st.sampled_from(["admit", "ok", "bad", "later", "left"]), st.floats(0, 400)), max_size=60))
def test_for_any_history(history: list[tuple[str, float]]) -> None:
    """It never lets two probes in at once, never stays shut for longer than its bound, and a success closes it."""
    one, now_s = CLOSED, 0.0
    probes: list[float] = []  # under way, by when they began
    for what, by_s in history:
        if what == "admit":
            let_in = admit(one, now_s)
            if let_in is not None:
                if state(one, now_s) is State.HALF_OPEN:
                    assert not [began for began in probes if now_s - began < PROBE_S]
                    probes.append(now_s)
                one = let_in
        elif what == "ok":
            one, probes = breaker.succeeded(one), []
            assert state(one, now_s) is State.CLOSED
        elif what == "bad":
            half_open = state(one, now_s) is State.HALF_OPEN
            one = failed(one, "x", now_s)
            if half_open:
                assert state(one, now_s) is State.OPEN
                probes = []
        elif what == "left":
            one, probes = breaker.given_up(one), []
        else:
            now_s += by_s
        assert 0 <= breaker.opens_in_s(one, now_s) <= max(LONGEST_OPEN_S, PROBE_S)
    assert admit(one, now_s + LONGEST_OPEN_S + PROBE_S) is not None
