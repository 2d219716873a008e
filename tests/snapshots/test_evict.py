"""Who has to go."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from snapshots.evict import Candidate, plan_eviction, shortage


def candidate(name: str, size: int, **changes: object) -> Candidate:
    fields: dict[str, object] = {"priority": 0, "last_used": 0.0} | changes
    return Candidate(name, Path(name), size, **fields)  # type: ignore[arg-type]


def test_the_longest_unused_goes_first() -> None:
    plan = plan_eviction([candidate("new", 10, last_used=9.0), candidate("old", 10, last_used=1.0)], 5)
    assert [victim.snapshot_id for victim in plan.victims] == ["old"]


def test_priority_outweighs_use_and_quarantine_outweighs_priority() -> None:
    low = candidate("low", 10, priority=-1, last_used=9.0)
    old = candidate("old", 10, last_used=1.0)
    bad = candidate("bad", 10, priority=5, last_used=99.0, quarantined=True)
    assert [victim.snapshot_id for victim in plan_eviction([old, low, bad], 25).victims] == ["bad", "low", "old"]
    assert [victim.snapshot_id for victim in plan_eviction([old, low, bad], 15).victims] == ["bad", "low"]


def test_what_is_pinned_or_read_stays_and_then_nothing_else_goes_in_vain() -> None:
    held = [candidate("pinned", 100, pinned=True), candidate("leased", 100, leased=True)]
    plan = plan_eviction([*held, candidate("free", 10)], 50)
    assert plan.victims == ()
    assert plan.missing_bytes == 40


def test_a_small_one_is_spared_when_a_large_one_has_to_go_anyway() -> None:
    plan = plan_eviction([candidate("small", 10, last_used=1.0), candidate("large", 100, last_used=2.0)], 50)
    assert [victim.snapshot_id for victim in plan.victims] == ["large"]


def test_the_disks_floor_and_the_stores_capacity_both_bind() -> None:
    assert shortage(need_bytes=10, free_bytes=100, floor_bytes=20, used_bytes=0, capacity_bytes=None) == 0
    assert shortage(need_bytes=90, free_bytes=100, floor_bytes=20, used_bytes=0, capacity_bytes=None) == 10
    assert shortage(need_bytes=10, free_bytes=100, floor_bytes=0, used_bytes=95, capacity_bytes=100) == 5


@given(
    st.lists(
        st.builds(
            candidate,
            st.uuids().map(str),
            st.integers(0, 100),
            priority=st.integers(-2, 2),
            last_used=st.floats(0, 100),
            pinned=st.booleans(),
            leased=st.booleans(),
            quarantined=st.booleans(),
        )
    ),
    st.integers(0, 500),
)
def test_a_plan_frees_enough_or_touches_nothing(candidates: list[Candidate], short: int) -> None:
    plan = plan_eviction(candidates, short)
    assert not any(victim.pinned or victim.leased for victim in plan.victims)
    freed = sum(victim.size_bytes for victim in plan.victims)
    if plan.missing_bytes:
        assert plan.victims == ()
        assert sum(c.size_bytes for c in candidates if not c.pinned and not c.leased) == short - plan.missing_bytes
    else:
        assert freed >= short
        # No victim is needless.
        assert all(freed - victim.size_bytes < short for victim in plan.victims[:-1])
