"""From samples to medians, ratios within rounds, and targets met or missed."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snapshots.bench.run import Sample

# What was measured of the layout before it was built, and so what the product has to reach.
COLD_OF_FIO, COLD_TO_SAFETENSORS, WARM_TO_SAFETENSORS = 0.95, 1.5, 4.0
CPU_WITHOUT, CPU_WITH, VERIFICATION = 0.06, 0.11, 0.02


def summarise(
    size: int,
    rounds: int,
    cold: Mapping[str, Sequence[Sample]],
    warm: Mapping[str, Sequence[Sample]],
    *,
    missing: Mapping[str, str],
    fio: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "bytes": size,
        "rounds": rounds,
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]},
        "fio": dict(fio),
        "missing": dict(missing),
        "cold": {name: _figures(samples, size) for name, samples in cold.items()},
        "warm": {name: _figures(samples, size) for name, samples in warm.items()},
        "targets": _targets(size, cold, warm),
    }


def render(result: Mapping[str, Any]) -> str:
    """As text, for a person."""
    lines = [
        f"{result['bytes'] / 1e9:.2f} GB, {result['rounds']} rounds, medians; fio: {' or '.join(result['fio']['best'])}"
    ]
    for kind in ("cold", "warm"):
        lines.append(f"\n{kind:<24}{'s':>8}{'GB/s':>8}{'CPU-s/GB':>10}   spread")
        for name, figures in sorted(result[kind].items(), key=lambda item: item[1]["seconds"]):
            spread = f"{figures['fastest_s']:.2f}-{figures['slowest_s']:.2f}"
            speed, cpu = figures["gb_per_s"], figures["cpu_s_per_gb"]
            lines.append(f"  {name:<22}{figures['seconds']:>8.2f}{speed:>8.2f}{cpu:>10.3f}   {spread}")
    for name, why in result["missing"].items():
        lines.append(f"  {name}: {why}")
    lines.append("\ntarget")
    for name, target in result["targets"].items():
        sign = ">=" if target["at_least"] else "<="
        word = "met" if target["met"] else "MISSED"
        lines.append(f"  {name:<38}{target['value']:>8.3f}  {sign} {target['target']:<6} {word}")
    return "\n".join(lines)


def _figures(samples: Sequence[Sample], size: int) -> dict[str, float]:
    seconds = [sample.seconds for sample in samples]
    median = statistics.median(seconds)
    return {
        "seconds": median,
        "fastest_s": min(seconds),
        "slowest_s": max(seconds),
        "gb_per_s": size / median / 1e9,
        "cpu_s_per_gb": statistics.median(sample.cpu_s for sample in samples) / (size / 1e9),
    }


def _ratio(over: Sequence[Sample], under: Sequence[Sample]) -> float | None:
    """The median over rounds of how many times longer ``over`` took than ``under``."""
    mine = {sample.round: sample.seconds for sample in under}
    pairs = [sample.seconds / mine[sample.round] for sample in over if sample.round in mine]
    return statistics.median(pairs) if pairs else None


def _targets(
    size: int, cold: Mapping[str, Sequence[Sample]], warm: Mapping[str, Sequence[Sample]]
) -> dict[str, dict[str, Any]]:
    gb = size / 1e9
    with_digests, without = cold.get("rewarm", ()), cold.get("rewarm_no_digests", ())
    slower = _ratio(with_digests, without)
    read_warm, mapped = warm.get("rewarm", ()), warm.get("rewarm_map", ())
    # The library brings its own memory, which an engine then copies from, or keeps; "given": copied into memory that
    # was there and faulted in, as ours is.
    own_cold, own_warm = cold.get("safetensors_unfaulted", ()), warm.get("safetensors_unfaulted", ())
    given_cold, given_warm = cold.get("safetensors", ()), warm.get("safetensors", ())
    values: dict[str, tuple[float | None, float, bool]] = {
        "cold_of_fio": (_ratio(cold.get("fio", ()), with_digests), COLD_OF_FIO, True),
        "cold_times_safetensors": (_ratio(own_cold, with_digests), COLD_TO_SAFETENSORS, True),
        "cold_times_safetensors_given": (_ratio(given_cold, with_digests), COLD_TO_SAFETENSORS, True),
        "warm_times_safetensors": (_ratio(own_warm, read_warm), WARM_TO_SAFETENSORS, True),
        "warm_times_safetensors_given": (_ratio(given_warm, read_warm), WARM_TO_SAFETENSORS, True),
        "warm_map_times_safetensors": (_ratio(own_warm, mapped), WARM_TO_SAFETENSORS, True),
        "warm_map_times_safetensors_given": (_ratio(given_warm, mapped), WARM_TO_SAFETENSORS, True),
        "cpu_s_per_gb_without_digests": (_cpu(without, gb), CPU_WITHOUT, False),
        "cpu_s_per_gb_with_digests": (_cpu(with_digests, gb), CPU_WITH, False),
        "verification_share_of_wall": (None if slower is None else max(0.0, 1 - 1 / slower), VERIFICATION, False),
    }
    return {
        name: {
            "value": value,
            "target": target,
            "at_least": at_least,
            "met": value >= target if at_least else value <= target,
        }
        for name, (value, target, at_least) in values.items()
        if value is not None
    }


def _cpu(samples: Sequence[Sample], gb: float) -> float | None:
    return statistics.median(sample.cpu_s for sample in samples) / gb if samples else None
