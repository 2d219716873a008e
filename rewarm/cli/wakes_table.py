"""The last wakes as a table for a person: what each was made of, how right its ETA was, who waited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from rewarm.units import format_bytes, format_duration

_NAMED = 3


def table(wakes: Iterable[Mapping[str, Any]], now_ms: int) -> Table | str:
    """``wakes`` is the ``data`` of what ``GET /rewarm/v1/wakes`` answers."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    numeric = ("AGO", "TOOK", "READ", "GB/S", "ETA OFF")
    for name in (
        "MODEL",
        "AGO",
        "TIER",
        "TOOK",
        "WEIGHTS",
        "READ",
        "GB/S",
        "ETA OFF",
        "PHASES",
        "WAITED",
        "REPLICA",
        "",
    ):
        out.add_column(
            name, justify="right" if name in numeric else "left", no_wrap=name not in ("PHASES", "WAITED", "")
        )
    for wake in wakes:
        rate, error = wake.get("gb_per_s"), wake.get("eta_error")
        out.add_row(
            str(wake.get("model")),
            format_duration(max(0, now_ms - int(wake.get("ready_at_ms") or 0)) / 1000),
            str(wake.get("tier")),
            f"{float(wake.get('duration_s') or 0):.2f} s",
            str(wake.get("weights") or ""),
            format_bytes(int(wake["bytes"])) if wake.get("bytes") else "",
            "" if rate is None else f"{rate:.2f}",
            "" if error is None else f"{error:+.0%}",
            phases(wake),
            waited(wake),
            str(wake.get("replica")),
            "; ".join(str(wake[why]) for why in ("cause", "tier_reason") if wake.get(why)),
        )
    return out if out.row_count else "no model has been woken yet"


def phases(wake: Mapping[str, Any]) -> str:
    """``starting 11.59  restoring 0.25``, in seconds."""
    timings = wake.get("timings") or ()
    return "  ".join(f"{one.get('phase')} {float(one.get('duration_s') or 0):.2f}" for one in timings)


def waited(wake: Mapping[str, Any]) -> str:
    """``4: req-a 12.3 s, req-b 3.1 s, …``, those first that waited longest."""
    count, waiters = int(wake.get("waited") or 0), list(wake.get("waiters") or ())
    if not count:
        return "nobody"
    named = [f"{one.get('id')} {float(one.get('waited_s') or 0):.1f} s" for one in waiters[:_NAMED]]
    more = ["…"] if named and count > len(named) else []
    return f"{count}: {', '.join([*named, *more])}" if named else str(count)
