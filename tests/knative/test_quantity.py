"""Durations as Go reads them, quantities as Kubernetes does."""

from __future__ import annotations

import pytest

from rewarm.knative.quantity import go_duration_s, quantity, seconds_text, size_text, whole


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("500ms", 0.5), ("0", 0), ("-3s", -3), ("1m0.5s", 60.5)],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert go_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "s", "1d", "1 h", "90sec", "1h-3m", "1h 3m", "s90"])
def test_no_duration(text: str) -> None:
    assert go_duration_s(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", 2), (2, 2), ("500m", 0.5), ("2Gi", 2**31), ("1k", 1000), ("1e3", 1000), ("-1Gi", -(2**30))],
)
def test_a_quantity(text: object, number: float) -> None:
    found = quantity(text)
    assert found is not None
    assert float(found) == number


@pytest.mark.parametrize("text", ["", "2GiB", "Gi", "1 Gi", None, [], "0x10"])
def test_no_quantity(text: object) -> None:
    assert quantity(text) is None


def test_what_is_written_can_be_read() -> None:
    for size in (0, 1, 1023, 2**10, 3 * 2**20, 5 * 2**30, 2**40):
        assert quantity(size_text(size)) == size
    for seconds in (0.0, 1.0, 90.0, 3600.0):
        assert go_duration_s(seconds_text(seconds)) == seconds


def test_true_is_no_number() -> None:
    assert whole(True) is None
    assert whole("12") == 12
