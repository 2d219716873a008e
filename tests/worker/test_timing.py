"""What a gate tells of how long its answers take."""

from __future__ import annotations

from worker.gate.timing import MOST, Times


def test_the_first_piece_counts_from_the_request_the_next_from_the_one_before() -> None:
    told: list[tuple[list[float], list[float]]] = []
    now = 10.0
    times = Times(lambda first, gaps: told.append((first, gaps)), lambda: now)
    clock = times.clock()
    now = 10.1
    clock.piece()
    now = 10.15
    clock.piece()
    assert told == [], "a few times a second is enough"
    now = 10.35
    clock.piece()
    ((first, gaps),) = told
    assert [round(s, 3) for s in first] == [0.1]
    assert [round(s, 3) for s in gaps] == [0.05, 0.2]


def test_of_very_many_a_part_is_told() -> None:
    told: list[list[float]] = []
    now = 0.0
    times = Times(lambda first, gaps: told.append(gaps), lambda: now)
    clock = times.clock()
    for _ in range(5000):
        now += 0.00004
        clock.piece()
    now = 1.0
    clock.piece()
    assert MOST / 4 <= len(told[0]) <= MOST + 1
