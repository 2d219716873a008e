"""The fleet as rows for a person: models, their replicas, how far each load is, what waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rewarm.units import format_bytes, format_duration

_COLOURS = {
    "ready": "green",
    "cold": "dim",
    "stopped": "dim",
    "failed": "red",
    "draining": "yellow",
    "asleep": "blue",
}
_BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    state: str
    replica: str = ""
    worker: str = ""
    fraction: float | None = None  # of a load
    running: int = 0
    slots: int = 0
    waiting: int = 0
    memory_bytes: int = 0
    detail: str = ""


def rows(status: Mapping[str, Any]) -> list[Row]:
    """``status`` is what ``GET /rewarm/v1/status`` answers. A model without a replica is one row as well."""
    by_model: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for worker in status.get("workers", ()):
        for replica in worker.get("replicas", ()):
            by_model.setdefault(str(replica.get("model")), []).append((str(worker.get("worker")), replica))
    out: list[Row] = []
    now_ms = int(status.get("now_ms") or 0)
    for name, model in status.get("models", {}).items():
        # An adapter's requests wait with those of its base, and are counted there.
        waiting = 0 if model.get("adapter_of") else int(model.get("waiting") or 0)
        replicas = by_model.pop(name, [])
        if not replicas:
            out.append(Row(name, str(model.get("state", "cold")), waiting=waiting, detail=_cold(model, now_ms)))
        for worker, replica in replicas:
            row = _row(name, worker, replica, waiting)
            out.append(row if not waiting or row.fraction else replace(row, detail=_waits(model) or row.detail))
            waiting = 0  # once a model
    for name, left in by_model.items():  # removed from the configuration, not gone yet
        out += [_row(name, worker, replica, 0) for worker, replica in left]
    return out


def table(found: Iterable[Row]) -> Table:
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("MODEL", "STATE", "PROGRESS", "RUNNING", "WAITING", "MEMORY", "REPLICA", "WORKER", ""):
        numeric = name in ("RUNNING", "WAITING", "MEMORY")
        out.add_column(name, justify="right" if numeric else "left", no_wrap=name != "")
    for row in found:
        out.add_row(
            row.model,
            Text(row.state, style=_COLOURS.get(row.state, "cyan")),
            bar(row.fraction),
            f"{row.running}/{row.slots}" if row.slots else "",
            str(row.waiting) if row.waiting else "",
            format_bytes(row.memory_bytes) if row.memory_bytes else "",
            row.replica,
            row.worker,
            row.detail,
        )
    return out


def bar(fraction: float | None) -> Table | str:
    if fraction is None:
        return ""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(ProgressBar(total=1.0, completed=fraction, width=_BAR_WIDTH), f"{fraction:4.0%}")
    return grid


def progress_words(progress: Mapping[str, Any]) -> str:
    """``1.2 GiB of 2.7 GiB, 12 s left`` — what is known of it."""
    parts = []
    if progress.get("bytes_total"):
        parts.append(f"{format_bytes(progress.get('bytes_done', 0))} of {format_bytes(progress['bytes_total'])}")
    if progress.get("eta_s") is not None:
        parts.append(f"{format_duration(progress['eta_s'])} left")
    if int(progress.get("attempt") or 1) > 1:
        parts.append(f"attempt {progress['attempt']}")
    if progress.get("message"):
        parts.append(str(progress["message"]))
    return ", ".join(parts)


def _row(model: str, worker: str, replica: Mapping[str, Any], waiting: int) -> Row:
    progress = replica.get("progress") or {}
    loading = bool(progress) and replica.get("state") not in ("ready", "failed", "stopped", "draining", "asleep")
    return Row(
        model=model,
        state=str(replica.get("state")),
        replica=str(replica.get("replica")),
        worker=worker,
        fraction=float(progress.get("fraction") or 0.0) if loading else None,
        running=int(replica.get("in_flight") or 0),
        slots=int(replica.get("slots") or 0),
        waiting=waiting,
        memory_bytes=int(replica.get("memory_bytes") or 0),
        detail=_failure(replica) or (progress_words(progress) if loading else _words(replica)),
    )


def _words(replica: Mapping[str, Any]) -> str:
    """Why it drains or waits, else why it will not sleep."""
    if replica.get("reason"):
        return str(replica["reason"])
    if replica.get("waits_for_room"):
        return "waits for room in memory to wake"
    return f"does not sleep: {replica['no_sleep']}" if replica.get("no_sleep") else ""


def _waits(model: Mapping[str, Any]) -> str:
    """What it waits for, in the leader's words."""
    return str(model.get("waits_for") or "")


def _cold(model: Mapping[str, Any], now_ms: int) -> str:
    """Why it failed, what it waits for, what its breaker says, or what its canary has found."""
    if told := _failed_loads(model, now_ms) or _waits(model):
        return told
    breaker, canary = model.get("breaker"), model.get("canary")
    if isinstance(breaker, Mapping):
        return f"breaker {breaker.get('state')} after {breaker.get('failures')} failures ({breaker.get('code')})"
    if model.get("adapter_of"):
        return f"adapter of {model['adapter_of']}"
    if isinstance(canary, Mapping) and canary.get("state") != "running":
        return f"canary {canary.get('state')}" + (f": {canary['message']}" if canary.get("message") else "")
    return ""


def _failed_loads(model: Mapping[str, Any], now_ms: int) -> str:
    """Why it failed, for how long requests are refused for that, and the workers that are passed over meanwhile."""
    parts = [_failure(model)] if _failure(model) else []
    refused_s = (int(model.get("failed_until_ms") or 0) - now_ms) / 1000
    if parts and refused_s > 0:
        parts.append(f"tried again in {format_duration(refused_s)}")
    for place in model.get("places") or ():
        open_s = (int(place.get("open_until_ms") or 0) - now_ms) / 1000
        what = f"passed over for {format_duration(open_s)}" if open_s > 0 else "one more may be tried"
        parts.append(f"{place.get('worker')}: {place.get('failures')} failed loads, {what}")
    return "; ".join(parts)


def _failure(of: Mapping[str, Any]) -> str:
    failure = of.get("failure")
    return f"{failure.get('reason')}: {failure.get('message')}" if isinstance(failure, Mapping) else ""
