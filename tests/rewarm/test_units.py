"""Durations and sizes as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewarm.units import format_bytes, format_duration, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30", 30), (1.5, 1.5), ("5m", 300), ("2h", 7200), ("1d", 86400), (" 3 s ", 3)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), (5, 5), ("1k", 1000), ("1KiB", 1024), ("32MiB", 32 * 2**20), ("24GB", 24 * 10**9), ("1.5Gi", 3 * 2**29)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "soon", "-1s", "5 weeks", True, None, []])
def test_what_is_no_duration_is_refused_with_examples(text: object) -> None:
    with pytest.raises(ValueError, match="5m"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "big", "-1", "5 XB", True, None])
def test_what_is_no_size_is_refused_with_examples(text: object) -> None:
    with pytest.raises(ValueError, match="24GB"):
        parse_size(text)


@given(st.integers(0, 2**50))
def test_a_number_of_bytes_is_itself(n: int) -> None:
    assert parse_size(n) == n


def test_they_are_shown_short() -> None:
    assert format_bytes(269 * 10**6) == "256.5 MiB"
    assert format_duration(0.32) == "320 ms"
    assert format_duration(75) == "1 min 15 s"
