"""Medians, quantiles, and how far the rounds lay apart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share ``q`` (0..1) of the values lies; nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


def spread(values: Sequence[float]) -> float:
    """Half the distance between the extremes as a share of the median: ±0.08 is 8 %."""
    middle = median(values)
    return (max(values) - min(values)) / 2 / middle if values and middle else float("nan")
