"""Fractions that never go back, and what is told of a load while it runs. The guesses themselves: test_eta.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewarm.pending import Usual, outlook
from rewarm.states import LOAD_PHASES, ReplicaState
from worker.progress import LoadProgress

S = ReplicaState


def load(expected: dict[ReplicaState, float] | None = None) -> LoadProgress:
    expected = expected or {S.STARTING: 10.0, S.RESTORING: 5.0, S.WARMING: 5.0}
    return LoadProgress("m", "m-1", 1, expected, started_at=0.0)


def test_a_phase_weighs_what_it_is_expected_to_last() -> None:
    progress = load()
    progress.enter(S.STARTING, 0.0)
    progress.enter(S.RESTORING, 10.0)
    progress.read(50, 100, 10.0)
    now = progress.snapshot(10.0)
    assert now.phase_fraction == 0.5
    assert now.fraction == pytest.approx(0.625)
    assert (now.bytes_done, now.bytes_total) == (50, 100)


def test_the_clock_moves_a_phase_that_reports_nothing_but_never_to_its_end() -> None:
    progress = load()
    progress.enter(S.STARTING, 0.0)
    seen = [progress.snapshot(float(t)).phase_fraction for t in (0, 2, 5, 10, 100, 10_000)]
    assert seen == sorted(seen)
    assert seen[3] > 0.5
    assert seen[-1] <= 0.95


def test_the_eta_follows_the_bytes_once_they_move() -> None:
    progress = load()
    progress.enter(S.RESTORING, 0.0)
    progress.read(100, 1000, 2.0)
    first = progress.eta_s(2.0)
    assert first is not None
    assert 3.0 + 5.0 < first < 18.0 + 5.0, "between what history says and what the first tenth says"
    progress.read(500, 1000, 10.0)
    assert progress.eta_s(10.0) == pytest.approx(10.0 + 5.0, rel=0.1)


def test_what_follows_the_last_byte_takes_what_it_usually_takes() -> None:
    """Repacking after reading; or a command whose weights are in the page cache, and which starts up only then."""
    progress = load({S.RESTORING: 10.0})
    progress.usual_steps = {(S.RESTORING, 100): 4.0}
    progress.enter(S.RESTORING, 0.0)
    assert progress.eta_s(0.0) == pytest.approx(10.0)
    progress.read(100, 100, 4.0)
    assert progress.eta_s(4.0) == pytest.approx(6.0)
    assert progress.eta_s(9.0) == pytest.approx(1.0)
    assert progress.eta_s(15.0) == pytest.approx(0.2 * 5.0), "late: nobody knows, but not nothing"


def test_a_run_that_is_slow_so_far_is_expected_to_stay_slow() -> None:
    usual, slow = load(), load()
    for progress, took in ((usual, 10.0), (slow, 15.0)):
        progress.enter(S.STARTING, 0.0)
        progress.enter(S.RESTORING, took)
    assert usual.eta_s(10.0) == pytest.approx(10.0)
    assert slow.eta_s(15.0) == pytest.approx(10.0 * 19 / 14), "half as slow again, most of which is believed"


def test_a_load_knows_at_its_end_how_far_its_eta_was_off_half_way() -> None:
    progress = load({S.STARTING: 8.0, S.WARMING: 2.0})
    progress.enter(S.STARTING, 5.0)
    for tenth in range(50, 170):
        progress.look(tenth / 10)
    progress.enter(S.WARMING, 17.0)
    progress.end(21.0)
    assert progress.duration_s == 16.0
    # After 8 of 16 s: 2 s were told to be left, where it was 8.
    assert progress.eta_error == pytest.approx(-0.75)
    assert load().eta_error is None


def test_the_next_wake_of_a_replica_starts_anew_and_goes_on_counting() -> None:
    first = load()
    first.enter(S.STARTING, 0.0)
    first.end(1.0)
    seq = first.snapshot(1.0).seq
    again = first.again(9.0).snapshot(9.0)
    assert (again.fraction, again.phase, again.eta_s) == (0.0, S.COLD, None)
    assert again.seq == seq + 1, "who keeps the newest of two by `seq` must take this one"


def test_ready_is_one_and_nothing_before_it_is() -> None:
    progress = load()
    for phase in (S.STARTING, S.RESTORING, S.WARMING):
        progress.enter(phase, 1.0)
        progress.report(1.0, 1.0)
    assert progress.snapshot(2.0).fraction < 1.0
    progress.end(3.0)
    assert progress.snapshot(3.0).fraction == 1.0
    assert [(t.phase, t.started_s) for t in progress.timings][-1] == (S.WARMING, 1.0)
    assert sum(t.duration_s for t in progress.timings) == pytest.approx(2.0)


def test_published_at_most_four_times_a_second_but_at_once_on_a_new_phase() -> None:
    progress = load()
    told = 0
    for i in range(100):
        now = i / 100
        progress.enter(S.STARTING, 0.0)
        progress.report(i / 100, now)
        if progress.due(now):
            told += 1
            progress.published(now)
    assert 4 <= told <= 5
    progress.enter(S.RESTORING, 1.0)
    progress.read(10, 100, 1.0)
    assert progress.due(1.0)
    progress.snapshot(1.0)
    progress.published(1.0)
    assert not progress.due(2.0)  # nothing moved
    progress.read(20, 100, 2.0)
    assert progress.due(2.0)


MOVES = st.one_of(
    st.tuples(st.just("enter"), st.sampled_from(LOAD_PHASES)),
    st.tuples(st.just("report"), st.floats(allow_nan=True)),
    st.tuples(st.just("read"), st.tuples(st.integers(-5, 200), st.integers(-5, 200))),
)


@given(st.lists(st.tuples(MOVES, st.floats(0, 30)), max_size=40))
def test_whatever_is_reported_the_fraction_never_goes_back(moves: list[tuple[tuple[str, object], float]]) -> None:
    progress, now, last, seq = load(), 0.0, 0.0, 0
    for (kind, value), wait_s in moves:
        now += wait_s
        match kind, value:
            case "enter", ReplicaState() as phase:
                progress.enter(phase, now)
            case "report", float() as fraction:
                progress.report(fraction, now)
            case "read", (int() as done, int() as total):
                progress.read(done, total, now)
        event = progress.snapshot(now)
        assert last <= event.fraction < 1.0
        assert 0.0 <= event.phase_fraction <= 1.0
        assert event.bytes_done <= event.bytes_total
        assert event.eta_s is not None
        assert event.eta_s >= 0
        assert event.seq > seq
        last, seq = event.fraction, event.seq


# --- in a pod --------------------------------------------------------------------------------------------------------


def test_what_the_pod_took_is_the_first_phase_of_its_load() -> None:
    progress = load()
    progress.started_at = 100.0
    progress.pod_came(30.0, None)
    assert progress.eta_s(100.0) == 20.0, "of the load: the pod is there"
    assert progress.snapshot(100.0).fraction == pytest.approx(0.6), "of pod and load"
    progress.enter(S.STARTING, 101.0)
    progress.enter(S.RESTORING, 111.0)
    progress.end(120.0)
    assert [(t.phase, t.started_s, t.duration_s) for t in progress.timings] == [
        (S.POD_PENDING, 0.0, 30.0),
        (S.STARTING, 31.0, 10.0),
        (S.RESTORING, 41.0, 9.0),
    ]
    assert progress.again(200.0).timings == [], "the next wake finds its pod"


def test_before_anything_is_known_of_the_load_the_pod_is_not_all_of_it() -> None:
    progress = LoadProgress("m", "m-1", 1, {}, started_at=100.0)
    progress.pod_came(30.0, None)
    assert progress.snapshot(100.0).fraction == 0.0


@given(st.floats(0.1, 3000), st.floats(0, 3000), st.floats(0, 9000))
def test_the_worker_goes_on_where_the_leader_was(pod_s: float, load_s: float, waited_s: float) -> None:
    usual = Usual(pod_s, load_s)
    progress = load()
    progress.pod_came(waited_s, usual)
    fractions = [progress.snapshot(0.0).fraction]
    progress.enter(S.STARTING, 1.0)
    fractions.append(progress.snapshot(1.0).fraction)
    assert outlook(usual, waited_s).fraction <= fractions[0] <= fractions[1] < 1.0


def test_how_slow_the_pod_was_says_nothing_of_the_load() -> None:
    quick, slow = load(), load()
    quick.pod_came(1.0, None)
    slow.pod_came(600.0, None)
    for progress in (quick, slow):
        progress.enter(S.STARTING, 0.0)
    assert quick.eta_s(5.0) == slow.eta_s(5.0)
