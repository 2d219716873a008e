"""The wake-up request of a place: always one open while the place is wanted, never one that a limit ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.backends.wakeup import Close, Holding, Limits, Open, Step, answered, due_s, ended, step

LIMITS = Limits(response_start_s=300, timeout_s=600)


def ids(holding: Holding) -> list[int]:
    return [request.id for request in holding.requests]


def wanted(holding: Holding, now_s: float, limits: Limits = LIMITS) -> tuple[list[Step], Holding]:
    return step(holding, limits, wanted=True, now_s=now_s)


def test_it_is_opened_once_and_closed_when_nobody_wants_the_place() -> None:
    steps, holding = wanted(Holding(), 0)
    assert steps == [Open(1)]
    assert wanted(holding, 1) == ([], holding)
    assert step(holding, LIMITS, wanted=False, now_s=2) == ([Close(1)], Holding(next_id=2))
    assert step(Holding(), LIMITS, wanted=False, now_s=2) == ([], Holding())


def test_a_cold_start_that_takes_longer_than_the_response_limit_is_asked_for_anew_before() -> None:
    """After the limit's 504 the pod would come up and be scaled straight back down."""
    _, holding = wanted(Holding(), 0)
    assert due_s(holding, LIMITS) == 270
    assert wanted(holding, 269)[0] == []
    steps, holding = wanted(holding, 270)
    assert (steps, ids(holding)) == ([Open(2)], [1, 2])
    holding = ended(holding, 1, 300)
    assert ids(holding) == [2]
    assert wanted(holding, 301)[0] == []


def test_it_is_renewed_before_the_timeout_and_the_old_one_closed_when_the_new_one_has_arrived() -> None:
    _, holding = wanted(Holding(), 0)
    holding = answered(holding, 1)
    assert wanted(holding, 569)[0] == []
    steps, holding = wanted(holding, 570)
    assert (steps, ids(holding)) == ([Open(2)], [1, 2])
    steps, holding = wanted(answered(holding, 2), 571)
    assert (steps, ids(holding)) == ([Close(1)], [2])


def test_short_limits_are_renewed_a_fifth_before() -> None:
    _, holding = wanted(Holding(), 0, Limits(10, 10))
    assert due_s(holding, Limits(10, 10)) == 8


def test_one_that_fails_is_opened_again_ever_more_slowly() -> None:
    holding, now, gaps = Holding(), 0.0, []
    for _ in range(8):
        steps, holding = wanted(holding, now)
        assert len(steps) == 1
        holding = ended(holding, holding.requests[0].id, now + 0.1)
        gaps.append(due_s(holding, LIMITS) - now - 0.1)
        assert wanted(holding, now + 0.2)[0] == []
        now = due_s(holding, LIMITS)
    assert [round(gap, 3) for gap in gaps] == [0.5, 1, 2, 4, 8, 10, 10, 10]


def test_one_that_the_worker_had_taken_begins_with_the_first_backoff_again() -> None:
    _, holding = wanted(Holding(), 0)
    holding = ended(holding, 1, 0.1)
    _, holding = wanted(holding, 5)
    holding = ended(answered(holding, 2), 2, 6)
    assert due_s(holding, LIMITS) == 6.5


def test_one_that_lasted_is_replaced_at_once() -> None:
    """Knative ended it at a limit that an operator has lowered, or the pod died."""
    _, holding = wanted(Holding(), 0)
    assert wanted(ended(answered(holding, 1), 1, 30), 30)[0] == [Open(2)]


def test_the_end_of_one_that_was_closed_changes_nothing() -> None:
    _, holding = wanted(Holding(), 0)
    _, let_go = step(holding, LIMITS, wanted=False, now_s=1)
    assert ended(let_go, 1, 1) == let_go


@given(
    start=st.floats(1, 100),
    extra=st.floats(0, 500),
    boot=st.floats(0, 1000),
    tick=st.floats(0.05, 2),
    kill=st.booleans(),
)
def test_while_it_is_wanted_there_is_never_none(
    start: float, extra: float, boot: float, tick: float, kill: bool
) -> None:
    """Whatever the limits, and however long the pod takes: the only gaps are the backoffs after a failure."""
    limits = Limits(10 + start, 10 + start + extra)
    holding, now = Holding(), 0.0
    for _ in range(150):
        _, holding = wanted(holding, now, limits)
        assert 1 <= len(holding.requests) <= 2
        now += tick
        for request in holding.requests:
            age = now - request.opened_s
            if now >= boot:
                holding = answered(holding, request.id)
            limit = limits.timeout_s if request.answered else limits.response_start_s
            if age > limit:
                assert len(holding.requests) > 1, "the limit met the only one"
                if kill:
                    holding = ended(holding, request.id, now)
