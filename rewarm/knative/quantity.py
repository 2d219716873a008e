"""Numbers as Kubernetes and Go write them: ``90s``, ``1h30m``; ``500m``, ``2Gi``."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_FACTORS = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip
_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([numkMGTP]|[KMGTP]i)?$")


def go_duration_s(text: str) -> float | None:
    """Seconds of what Go's ``time.ParseDuration`` takes; None where it takes it not."""
    if text in ("0", "+0", "-0"):
        return 0.0
    sign = -1.0 if text.startswith("-") else 1.0
    rest = text[1:] if text[:1] in "+-" else text
    total, at = 0.0, 0
    for part in _PART.finditer(rest):
        if part.start() != at:
            return None
        total += float(part[1]) * _UNITS_S[part[2]]
        at = part.end()
    return sign * total if at and at == len(rest) else None


def quantity(value: object) -> Decimal | None:
    """A Kubernetes quantity as a number; None where it is none."""
    match = _QUANTITY.match(str(value).strip())
    if match is None:
        return None
    try:
        return Decimal(match[1]) * _FACTORS[match[2] or ""]
    except InvalidOperation:
        return None


def whole(value: object) -> int | None:
    """An integer, as YAML has it or as an annotation writes it."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value) else None


def seconds_text(seconds: float) -> str:
    """``90s``, as Go reads it."""
    return f"{seconds:g}s"


def size_text(size_bytes: int) -> str:
    """Bytes as the largest binary unit that divides them: ``2Gi``, ``1536Mi``."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        factor = int(_FACTORS[unit])
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)
