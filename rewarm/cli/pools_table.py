"""Pools of pre-warmed engines in ``rewarm ps``: whether a wake can start from one, and if not, why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.markup import escape
from rich.table import Table

from rewarm.units import format_bytes

_COLOURS = {"ready": "green", "failed": "red", "no_room": "yellow", "refused": "red"}


def pools(workers: Iterable[dict[str, Any]]) -> Table | None:
    """A line a pool, then one for each model of it; None where no worker has a pool."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("POOL", "WORKER", "STATE", "READY", "MEMORY", "STARTS", ""):
        out.add_column(name, justify="right" if name in ("READY", "MEMORY", "STARTS") else "left")
    for worker in workers:
        for pool in worker.get("pools") or ():
            pooled, plain = int(pool.get("pooled") or 0), int(pool.get("plain") or 0)
            out.add_row(
                str(pool["kind"]),
                str(worker.get("worker")),
                _coloured(str(pool["state"])),
                "",
                format_bytes(int(pool.get("memory_bytes") or 0)),
                f"{pooled} of {pooled + plain}",
                escape(str(pool.get("reason") or "")),
            )
            for entry in pool.get("prepared") or ():
                out.add_row(
                    f"  {entry['model']}",
                    "",
                    _coloured(str(entry["state"])),
                    str(entry.get("ready") or 0),
                    "",
                    "",
                    escape(str(entry.get("reason") or "")),
                )
    return out if out.row_count else None


def _coloured(state: str) -> str:
    colour = _COLOURS.get(state)
    return f"[{colour}]{state}[/]" if colour else state
