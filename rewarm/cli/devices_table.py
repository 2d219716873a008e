"""Memory of every worker's devices in ``rewarm ps``: what may be used, what is promised, used, and taken by others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from rewarm.units import format_bytes

_SIZES = ("budget", "promised", "used", "others", "free")


def devices(workers: Iterable[dict[str, Any]]) -> Table | None:
    """A line a device; None where no worker says anything of its devices."""
    out = Table(box=None, pad_edge=False, header_style="bold")
    out.add_column("DEVICE")
    out.add_column("WORKER")
    for name in _SIZES:
        out.add_column(name.upper(), justify="right")
    out.add_column("")
    for worker in workers:
        for device in worker.get("devices") or ():
            sizes = [format_bytes(int(device.get(f"{name}_bytes") or 0)) for name in _SIZES]
            lost = device.get("state") == "lost"
            note = f"[red]lost[/]: {device.get('reason')}" if lost else str(device.get("name") or "")
            out.add_row(_label(device), str(worker.get("worker")), *sizes, note)
    return out if out.row_count else None


def _label(device: dict[str, Any]) -> str:
    return "RAM" if device.get("kind") == "ram" else f"GPU {device.get('index')}"
