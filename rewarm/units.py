"""Durations ("90s", "5m", 1.5) and sizes ("32MiB") as people write them in a configuration."""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?\s*$")
_FACTORS = {None: 1} | {p + s: b**n for s, b in (("", 1000), ("i", 1024)) for n, p in enumerate("KMGT", 1)}
_FACTORS["k"] = 1000
_FACTORS["ki"] = 1024


def parse_duration(value: object) -> timedelta:
    """Seconds as a number, or a number with ms, s, m, h or d. Raise ValueError that says what is accepted."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a duration is a number of seconds or text such as 500ms, 30s, 5m, 2h")
    match = _DURATION.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is no duration: write seconds, or 500ms, 30s, 5m, 2h, 1d")
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])


def parse_size(value: object) -> int:
    """Bytes as a whole number, or a number with kB, MB, GB, KiB, MiB, GiB, TiB."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a size is a number of bytes or text such as 512MiB, 24GB")
    match = _SIZE.match(str(value))
    if match is None:
        raise ValueError(f"{value!r} is no size: write bytes, or 512KiB, 32MiB, 24GB")
    return int(float(match[1]) * _FACTORS[match[2]])


def format_bytes(n: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def format_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
