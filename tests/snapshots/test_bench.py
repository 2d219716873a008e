"""The benchmark's arithmetic, and the bytes it makes. What it measures is for a quiet machine, not for a test."""

from __future__ import annotations

from pathlib import Path

from snapshots.bench.data import bring_into_cache, drop_from_cache, make
from snapshots.bench.report import render, summarise
from snapshots.bench.run import Sample
from snapshots.header import read_header
from snapshots.lease import take
from snapshots.restore import verify_snapshot


def samples(*seconds: float, cpu_s: float = 0.1) -> list[Sample]:
    return [Sample(number, value, cpu_s) for number, value in enumerate(seconds)]


def test_ratios_are_taken_within_a_round() -> None:
    """The machine was ten times slower in the second round, for everybody: the ratio does not notice."""
    cold = {
        "fio": samples(1.0, 10.0, 1.0),
        "rewarm": samples(1.0, 10.0, 1.0, cpu_s=0.2),
        "rewarm_no_digests": samples(1.0, 10.0, 1.0),
        "safetensors_unfaulted": samples(2.0, 20.0, 2.0),
    }
    result = summarise(2 * 10**9, 3, cold, {}, missing={"fastsafetensors": "not installed"}, fio={"best": ["psync"]})
    targets = {name: (target["value"], target["met"]) for name, target in result["targets"].items()}
    assert targets == {
        "cold_of_fio": (1.0, True),
        "cold_times_safetensors": (2.0, True),
        "cpu_s_per_gb_without_digests": (0.05, True),
        "cpu_s_per_gb_with_digests": (0.1, True),
        "verification_share_of_wall": (0.0, True),
    }
    text = render(result)
    assert "fastsafetensors: not installed" in text
    assert "MISSED" not in text


def test_a_missed_target_says_so() -> None:
    cold = {"fio": samples(0.5), "rewarm": samples(1.0)}
    result = summarise(10**9, 1, cold, {}, missing={}, fio={"best": ["psync"]})
    assert result["targets"]["cold_of_fio"] == {"value": 0.5, "target": 0.95, "at_least": True, "met": False}
    assert "MISSED" in render(result)


def test_the_bytes_are_a_snapshot_like_any_other(tmp_path: Path) -> None:
    path = make(tmp_path, 30_000_000)
    header = read_header(path)
    assert header.file_bytes > 100_000_000  # one layer is the least there is
    with take(path.parent) as lease:
        verify_snapshot(lease)
    drop_from_cache(path)
    bring_into_cache(path)
