"""What a phase usually takes, what is left of a load, and how good such guesses are where runs vary as real ones do."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewarm.pending import typical_s
from rewarm.states import LOAD_PHASES, ReplicaState, Tier
from worker.eta import (
    BYTES,
    STEPS,
    Told,
    expected_s,
    left_in_phase_s,
    left_out,
    pace,
    reading_pace,
    step_name,
    step_of,
    usual_steps,
)
from worker.progress import LoadProgress

S = ReplicaState
SECONDS = st.floats(0.01, 1000)


# --- what a phase usually takes --------------------------------------------------------------------------------------


def test_without_history_reading_is_bytes_over_bandwidth() -> None:
    times = expected_s("vllm", 10_000_000_000, 500e6, {})
    assert times[S.RESTORING] == 20.0
    assert list(times) == [phase for phase in LOAD_PHASES if phase in times]


def test_history_is_of_this_machine_and_tells_which_phases_there_are() -> None:
    assert expected_s("vllm", 0, 500e6, {S.STARTING: (1.0, 9.0, 2.0), S.FETCHING: (3.0,)}) == {
        S.FETCHING: 3.0,
        S.STARTING: 2.0,
    }


def test_a_phase_that_came_once_is_not_expected_for_ever() -> None:
    """The first load downloads for ten minutes and checks its first answer. The others do neither."""
    history = {"fetching": (600.0,), "starting": (1.0,), "verifying": (3.0,), "starting@50": (0.5,)}
    absent = left_out({"starting": 1.0}, history)
    assert absent == {"fetching": 0.0, "verifying": 0.0}, "nothing of steps, nor of phases that nobody knows"
    now = {S(name): (*history[name], seconds) for name, seconds in {**absent, "starting": 1.2}.items()}
    assert expected_s("vllm", 0, 500e6, now) == {S.STARTING: 1.0}
    assert expected_s("vllm", 0, 500e6, {S.STARTING: (0.0, 0.0)})[S.STARTING] > 0, "too short to measure, yet it comes"


def test_without_history_a_pooled_start_and_a_wake_from_sleep_are_expected_to_be_short() -> None:
    cold, pooled, asleep = (
        sum(expected_s("vllm", 10**9, 500e6, {}, tier).values()) for tier in (Tier.COLD, Tier.POOLED, Tier.ASLEEP)
    )
    assert asleep < pooled < cold / 10


def test_after_a_change_three_runs_are_believed() -> None:
    assert typical_s([10.0] * 8 + [2.0] * 2) == 10.0
    assert typical_s([10.0] * 8 + [2.0] * 3) == 2.0


def test_nothing_and_nonsense_tell_nothing() -> None:
    assert typical_s(()) is None
    assert typical_s((math.nan, -1.0, math.inf)) is None
    assert typical_s((math.nan, 3.0)) == 3.0


@given(st.lists(SECONDS, min_size=1, max_size=7), st.floats(0, 1e9), st.integers(0, 7))
def test_one_bad_run_never_leaves_the_range_of_the_others(good: list[float], bad: float, at: int) -> None:
    where = min(at, len(good))
    told = typical_s([*good[:where], bad, *good[where:]])
    assert told is not None
    if bad >= min(good) or len(good) >= 2:  # of two the shorter one is taken, and bad runs are long
        assert min(good) <= told <= max(good)


@given(st.dictionaries(st.sampled_from(LOAD_PHASES), st.lists(SECONDS, min_size=3, max_size=8), min_size=1))
def test_one_bad_run_changes_what_a_load_is_expected_to_take_by_no_more_than_the_good_ones_differ(
    history: dict[ReplicaState, list[float]],
) -> None:
    hung = {phase: [*seconds, 1e6] for phase, seconds in history.items()}
    before, after = (sum(expected_s("vllm", 0, 500e6, one).values()) for one in (history, hung))
    assert abs(after - before) <= sum(max(seconds) - min(seconds) for seconds in history.values()) + 1e-6


# --- what is left ----------------------------------------------------------------------------------------------------


def test_bytes_outvote_history_from_the_first_quarter_on_steps_do_not() -> None:
    usual, elapsed, fraction = 10.0, 10.0, 0.25  # by its own account it will take 40
    assert left_in_phase_s(usual, elapsed, fraction, elapsed, BYTES) > 15.0
    assert left_in_phase_s(usual, elapsed, fraction, elapsed, STEPS) < 10.0


def test_a_cold_page_cache_is_noticed_by_the_bytes_however_much_slower_it_is() -> None:
    """Usually 5 % are read after 0.1 s and all after 2 s; today the first half took 50 s."""
    steps = {(S.RESTORING, 5): 0.1, (S.RESTORING, 50): 1.0, (S.RESTORING, 100): 2.0}
    progress = LoadProgress("m", "m-1", 1, {S.RESTORING: 2.0}, started_at=0.0, usual_steps=steps)
    progress.enter(S.RESTORING, 0.0)
    progress.read(50, 1000, 5.0)
    progress.read(500, 1000, 50.0)
    assert progress.eta_s(50.0) == pytest.approx(50.0, rel=0.2)
    assert reading_pace(1.0, (0.1, 5.0), (0.1, 5.0), 2.0) == 1.0, "one step is no pace"


def test_a_report_that_has_grown_old_does_not_stretch_the_phase() -> None:
    """Half was told after 2 s, then a long step began: it is still 4 s in all, not twice the clock."""
    assert left_in_phase_s(4.0, 3.9, 0.5, 2.0, STEPS) == pytest.approx(0.1)


def test_a_run_sets_its_own_pace_within_limits() -> None:
    assert pace([], 10.0) == 1.0
    assert pace([(2.0, 4.0)], 10.0) == 1.5, "a fifth of the load is behind it: half of what it says is believed"
    assert 1.5 < pace([(5.0, 10.0)], 10.0) < 2.0
    assert pace([(5.0, 1e6)], 10.0) == 3.0
    assert pace([(5.0, 0.0)], 10.0) == 0.4
    assert pace([(0.0, 3.0)], 0.0) == 1.0


def test_steps_within_a_phase_have_a_history_of_their_own() -> None:
    assert step_of(S.WARMING, 0.0) is None
    assert step_of(S.WARMING, 0.519) == (S.WARMING, 50)
    assert step_of(S.STARTING, 1.0) == (S.STARTING, 100)
    history = {"starting": (10.0,), step_name((S.STARTING, 50)): (3.0, 9.0, 4.0), "starting@x": (1.0,), "?@5": (1.0,)}
    assert usual_steps(history) == {(S.STARTING, 50): 4.0}


def test_a_step_that_comes_late_tells_the_pace_of_the_run_before_its_phase_is_over() -> None:
    """Half of the start is told after 4 of its 10 s, because it is the shorter half; today after 8."""
    progress = LoadProgress("m", "m-1", 1, {S.STARTING: 10.0}, started_at=0.0, usual_steps={(S.STARTING, 50): 4.0})
    progress.enter(S.STARTING, 0.0)
    assert progress.eta_s(0.0) == pytest.approx(10.0)
    progress.report(0.5, 8.0)
    factor = pace([(4.0, 8.0)], 10.0)
    assert 1.6 < factor < 1.7
    assert progress.eta_s(8.0) == pytest.approx(6.0 * factor)
    assert progress.steps == {(S.STARTING, 50): 8.0}


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1e6), st.sampled_from([BYTES, STEPS]))
def test_never_negative_and_always_a_number(
    usual: float, elapsed: float, reported: float, at: float, trust: float
) -> None:
    left = left_in_phase_s(usual, elapsed, reported, min(at, elapsed), trust)
    assert left >= 0
    assert math.isfinite(left)


@given(st.floats(0.1, 1e4), st.floats(0, 1e4))
def test_a_phase_that_is_late_is_never_told_to_be_over(usual: float, late: float) -> None:
    if late > 0.01:
        assert left_in_phase_s(usual, usual + late, 0.0, 0.0, STEPS) > 0


# --- how far it was off ----------------------------------------------------------------------------------------------


def test_the_error_is_of_the_guess_half_way_counted_down_since() -> None:
    told = Told()
    told.add(0.0, 100.0)
    told.add(4.0, 7.0)
    told.add(6.0, 4.0)
    assert told.error_at_half(10.0) == pytest.approx(0.2)  # 6 s were left to tell, 5 really
    assert Told().error_at_half(10.0) is None
    assert told.error_at_half(0.0) is None


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), max_size=1000))
def test_however_long_a_load_is_few_guesses_are_kept(guesses: list[tuple[float, float]]) -> None:
    told = Told()
    for at, left in sorted(guesses):
        told.add(at, left)
    assert len(told.at_s) == len(told.left_s) <= 256
    error = told.error_at_half(100.0)
    assert error is None or error >= -1


# --- fifty wakes -----------------------------------------------------------------------------------------------------


STEPS_OF_A_START = {0.05: 0.01, 0.2: 0.2, 0.3: 0.35, 0.5: 0.7, 0.6: 0.8, 0.8: 0.9}
"""What is reported → after which share of the time: not evenly, as real ones are."""


@dataclass
class Machine:
    """A machine whose runs vary: in all (a busy machine) and by phase (the disk), and one run in twenty goes wrong."""

    usual: dict[ReplicaState, float]
    dice: random.Random
    history: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def wake(self) -> float | None:
        """One load, looked at ten times a second; its error half-way."""
        busy = self.dice.lognormvariate(0, 0.2)
        took = {phase: usual * busy * self.dice.lognormvariate(0, 0.1) for phase, usual in self.usual.items()}
        if self.dice.random() < 0.05:
            took[self.dice.choice(list(took))] *= 8
        phases = {phase: self.history.get(phase.value, ()) for phase in LOAD_PHASES}
        progress = LoadProgress("m", "m-1", 1, expected_s("vllm", 10**9, 500e6, phases), started_at=0.0)
        progress.usual_steps = usual_steps(self.history)
        now = 0.0
        for phase, seconds in took.items():
            progress.enter(phase, now)
            for tenth in range(int(seconds * 10)):
                share = tenth / 10 / seconds
                at = now + tenth / 10
                if phase is S.RESTORING:
                    progress.read(int(1000 * share), 1000, at)
                elif phase is S.STARTING:
                    for told, after in STEPS_OF_A_START.items():
                        if after <= share:
                            progress.report(told, at)
                progress.look(at)
                assert 0 <= progress.snapshot(at).fraction < 1
            now += seconds
        progress.end(now)
        seen = {timing.phase.value: timing.duration_s for timing in progress.timings}
        seen |= {step_name(step): after for step, after in progress.steps.items()}
        for name, seconds in seen.items():
            self.history[name] = (*self.history.get(name, ())[-7:], seconds)
        return progress.eta_error


@pytest.mark.parametrize("seed", range(8))
def test_half_way_the_median_error_is_below_a_fifth_over_fifty_wakes_of_three_models(seed: int) -> None:
    dice = random.Random(seed)
    models = [
        Machine({S.STARTING: 11.6, S.RESTORING: 0.3, S.INITIALISING: 1.4, S.WARMING: 1.5, S.VERIFYING: 0.4}, dice),
        Machine({S.STARTING: 11.6, S.RESTORING: 9.0, S.INITIALISING: 2.0, S.WARMING: 5.0, S.VERIFYING: 1.0}, dice),
        Machine({S.FETCHING: 10.0, S.STARTING: 12.0, S.RESTORING: 3.0, S.WARMING: 1.0}, dice),
    ]
    for model in models:
        model.wake()  # history
    errors = [abs(error) for turn in range(50) if (error := models[turn % 3].wake()) is not None]
    assert len(errors) == 50
    assert statistics.median(errors) <= 0.2
