"""How far a pod is that has not come yet: what earlier ones took, in steps, and never back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rewarm.pending import Usual, outlook, usual_of

SECONDS = st.floats(0.01, 5000)


def test_a_place_remembers_what_its_pods_took_and_their_loads() -> None:
    history = {
        ("m", "cold", "pod_pending"): (90.0, 4.0, 5.0),
        ("m", "cold", "starting"): (2.0,),
        ("m", "cold", "restoring"): (1.0, 1.0),
        ("m", "cold", "restoring@50"): (0.5,),
        ("other", "cold", "pod_pending"): (1.0,),
    }
    assert usual_of(history, "m") == Usual(pod_s=5.0, load_s=3.0)
    assert usual_of({("m", "cold", "starting"): (2.0,)}, "m") is None, "no pod of it has come yet"


def test_a_load_from_a_pool_in_the_pod_counts_where_there_is_no_other() -> None:
    pooled = {("m", "pooled", "pod_pending"): (3.0,), ("m", "pooled", "starting"): (0.5,)}
    assert usual_of(pooled, "m") == Usual(pod_s=3.0, load_s=0.5)
    assert usual_of(pooled | {("m", "cold", "pod_pending"): (4.0,)}, "m") == Usual(pod_s=4.0, load_s=0.0)


def test_what_is_left_is_told_in_steps_of_a_second_or_a_twentieth() -> None:
    usual = Usual(pod_s=100.0, load_s=20.0)
    assert [outlook(usual, waited).at_s for waited in (0, 4.9, 5.0, 99, 100, 104.9)] == [0, 0, 5, 95, 100, 100]
    assert [outlook(usual, waited).eta_s for waited in (0, 5, 100)] == [120, 115, 20]
    assert outlook(usual, 200).eta_s == 40, "late: nobody knows, but not nothing"
    assert outlook(Usual(pod_s=2.0, load_s=0.0), 1.5).at_s == 1.0


def test_a_clock_that_is_behind_is_the_begin() -> None:
    assert outlook(Usual(10.0, 10.0), -3.0) == outlook(Usual(10.0, 10.0), 0.0)


@given(st.builds(Usual, SECONDS, st.floats(0, 5000)), SECONDS, SECONDS)
def test_fractions_only_grow_and_never_say_that_it_is_there(usual: Usual, one: float, other: float) -> None:
    before, after = (outlook(usual, waited) for waited in sorted((one, other)))
    assert 0 <= before.phase_fraction <= after.phase_fraction <= 0.95
    assert 0 <= before.fraction <= after.fraction <= 0.95
    assert after.eta_s >= 0
