"""A few of the random faults; ``python -m tests.snapshots.faults --count 1000`` runs as many as you like."""

from __future__ import annotations

from tests.snapshots.faults import run


def test_no_fault_shows_a_torn_snapshot_or_loses_space() -> None:
    done = run(count=40, seed=20)
    kinds = done["kinds"]
    assert isinstance(kinds, dict)
    assert sum(kinds.values()) >= 40
    assert sum(number for kind, number in kinds.items() if kind.startswith("killed")) > 10
    assert kinds["flipped bit found"] > 0
