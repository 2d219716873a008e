"""What a thousand cycles add up to, from looks that are each a little off."""

from __future__ import annotations

import pytest

from benchmarks.cycles import Held, growth


def look(cycle: int, mib: float) -> Held:
    return Held(
        cycle,
        agent_bytes=int(mib * 2**19),
        zygote_bytes=int(mib * 2**19),
        pool_bytes=0,
        processes=3,
        agent_descriptors=9,
        files=(),
    )


def test_growth_is_the_slope_of_all_looks_not_the_difference_of_two() -> None:
    assert growth([look(0, 10), look(100, 11), look(200, 12)]) == pytest.approx(2**20)
    assert growth([look(0, 10), look(100, 90), look(200, 10)]) == pytest.approx(0), "one that was disturbed"
    assert growth([look(0, 10)]) == 0
