"""How fast a load may go beside what is served: the guard's decisions as a table, and over time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.pacing.guard import FIRST_SHARE, LEAST_SHARE, LONGEST_PAUSE_S, Pace, begin, decide
from worker.pacing.loads import Loads
from worker.pacing.samples import Judgement, Samples, percentile

SLOW, FINE, BETWEEN = Judgement(slow=True, ratio=1.5), Judgement(fine=True, ratio=1.0), Judgement()


@pytest.mark.parametrize(
    ("share", "for_s", "seen", "serving", "becomes"),
    [
        # too slow: half as fast, at the end a pause
        (1.0, 1.0, SLOW, True, 0.5),
        (0.25, 1.0, SLOW, True, 0.125),
        (LEAST_SHARE, 1.0, SLOW, True, 0.0),
        # not before there can be samples of the change itself
        (0.5, 0.9, SLOW, True, 0.5),
        # in between, or nothing known: as it is
        (0.5, 9.0, BETWEEN, True, 0.5),
        # fine: a little more, not at once
        (0.5, 2.0, FINE, True, 0.75),
        (0.5, 1.9, FINE, True, 0.5),
        (0.75, 2.0, FINE, True, 1.0),
        (1.0, 9.0, FINE, True, 1.0),
        # a pause ends when all is well, and in any case
        (0.0, 2.0, FINE, True, LEAST_SHARE),
        (0.0, 7.9, SLOW, True, 0.0),
        (0.0, LONGEST_PAUSE_S, SLOW, True, LEAST_SHARE),
        (0.0, LONGEST_PAUSE_S, BETWEEN, True, LEAST_SHARE),
        # nobody is served: all of it
        (0.0, 0.1, BETWEEN, False, 1.0),
        (0.25, 0.1, SLOW, False, 1.0),
    ],
)
def test_the_decision(share: float, for_s: float, seen: Judgement, serving: bool, becomes: float) -> None:
    after = decide(Pace(share, 100.0, "", True), seen, 100.0 + for_s, serving=serving, waited_for=False)
    assert after.share == becomes
    assert after.since == (100.0 if becomes == share else 100.0 + for_s)


def test_requests_that_come_during_a_load_slow_it_down_like_those_before() -> None:
    alone = begin(5.0, serving=False, waited_for=False)
    assert decide(alone, BETWEEN, 6.0, serving=False, waited_for=False) is alone
    after = decide(alone, BETWEEN, 6.0, serving=True, waited_for=False)
    assert after == begin(6.0, serving=True, waited_for=False)


def test_it_begins_slowly_where_something_is_served() -> None:
    assert begin(5.0, serving=True, waited_for=False).share == FIRST_SHARE
    assert begin(5.0, serving=False, waited_for=False).share == 1.0


@pytest.mark.parametrize("seen", [SLOW, FINE, BETWEEN])
def test_a_load_that_somebody_waits_for_is_never_held_back(seen: Judgement) -> None:
    pace = begin(5.0, serving=True, waited_for=True)
    assert (pace.share, pace.beside) == (1.0, False)
    for now in (5.5, 9.0, 60.0):
        pace = decide(pace, seen, now, serving=True, waited_for=True)
        assert (pace.share, pace.beside) == (1.0, False)


@pytest.mark.parametrize("share", [0.0, LEAST_SHARE, FIRST_SHARE, 1.0])
def test_somebody_who_comes_to_wait_frees_a_load_at_once_and_one_who_leaves_gives_it_back(share: float) -> None:
    """Out of a pause, too, and it yields no more. When nobody waits any longer it begins like any other."""
    freed = decide(Pace(share, 100.0, "", True), SLOW, 100.1, serving=True, waited_for=True)
    assert freed == Pace(1.0, 100.1, "somebody waits for it", False)
    assert decide(freed, SLOW, 101.0, serving=True, waited_for=False) == begin(101.0, serving=True, waited_for=False)


@given(st.lists(st.tuples(st.floats(0.1, 5), st.sampled_from([SLOW, FINE, BETWEEN]), st.booleans()), max_size=60))
def test_whatever_is_measured_a_pause_ends_and_the_share_stays_within_bounds(
    steps: list[tuple[float, Judgement, bool]],
) -> None:
    pace, now = begin(0.0, serving=True, waited_for=False), 0.0
    for after_s, seen, serving in steps:
        now += after_s
        before, pace = pace, decide(pace, seen, now, serving=serving, waited_for=False)
        assert 0.0 <= pace.share <= 1.0
        assert not (before.share == pace.share == 0.0 and now - pace.since >= LONGEST_PAUSE_S)


@pytest.mark.parametrize("count", [30, 60, 300])
def test_the_same_times_as_before_are_hardly_ever_judged_slow_and_longer_ones_are(count: int) -> None:
    """Also where their 99th percentile is only the largest of a few dozen."""
    random = Random(1)

    def look(factor: float) -> Judgement:
        now = Samples()
        now.add("a", "gap", (factor * random.lognormvariate(-4, 0.3) for _ in range(count)), 10.0)
        return now.judged(level, 0.0, 1.2, 1.1)

    before = Samples()
    before.add("a", "gap", (random.lognormvariate(-4, 0.3) for _ in range(3000)), 10.0)
    level = before.level(0.0)
    assert sum(look(1.0).slow for _ in range(100)) <= 2
    assert sum(look(2.0).slow for _ in range(100)) >= 95


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile(range(1, 101)) == 99
    assert percentile([5.0]) == 5.0
    assert percentile([1.0] * 99 + [9.0]) == 1.0
    assert percentile([1.0] * 98 + [9.0] * 2) == 9.0


def test_kinds_and_models_are_not_mixed_and_the_worst_counts() -> None:
    samples = Samples()
    samples.add("a", "gap", [0.01] * 50, 10.0)
    samples.add("a", "first", [0.5] * 50, 10.0)
    samples.add("b", "gap", [0.02] * 5, 10.0)
    before = samples.level(0.0, 15.0)
    assert before == {("a", "gap"): 0.01, ("a", "first"): 0.5}, "five of b say nothing"
    samples.add("a", "gap", [0.01] * 40 + [0.013] * 10, 20.0)
    samples.add("a", "first", [0.4] * 50, 20.0)
    seen = samples.judged(before, 16.0, 1.2, 1.1)
    assert (seen.slow, seen.fine) == (True, False)
    assert seen.ratio == pytest.approx(1.3)
    assert samples.judged({}, 16.0, 1.2, 1.1) == Judgement(), "nothing to hold it against"
    assert samples.judged(before, 25.0, 1.2, 1.1) == Judgement(), "nothing measured"


def test_a_load_is_held_against_the_level_before_it_and_by_samples_since_its_last_change() -> None:
    loads = Loads()
    loads.samples.add("a", "gap", [0.01] * 100, 99.0)
    assert loads.begin("new", 100.0, waited_for=False).share == FIRST_SHARE
    loads.samples.add("a", "gap", [0.02] * 100, 101.0)
    assert loads.look("new", 101.5, waited_for=False).share == FIRST_SHARE / 2
    loads.samples.add("a", "gap", [0.01] * 100, 103.0)
    assert loads.look("new", 104.0, waited_for=False).share == FIRST_SHARE / 2 * 1.5, (
        "the slow ones are of before the change"
    )
    loads.running["a-1"] = 1
    assert loads.look("new", 119.0, waited_for=False).share < 1.0, "an answer runs, however slowly"
    loads.running["a-1"] = 0
    assert loads.look("new", 120.0, waited_for=False).share == 1.0, "nothing is served any more"
    loads.end("new")
    loads.running["a-1"] = 1
    loads.samples = Samples()
    assert loads.begin("next", 200.0, waited_for=False).share == FIRST_SHARE
    assert loads.look("next", 202.0, waited_for=False).share > FIRST_SHARE, (
        "nothing was measured before it: nothing to hold it against"
    )
    assert not Loads(on=False).begin("new", 0.0, waited_for=False).held_back
