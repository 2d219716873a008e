"""How snapshots look on a terminal: bars, a table, a page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from rewarm.units import format_bytes, format_duration
from snapshots import CheckpointError, Entry, OnProgress, Restored, Store, Usage, ignore
from snapshots import Progress as Done


def size(n: int) -> str:
    return format_bytes(n)


@contextmanager
def bar(as_json: bool) -> Iterator[OnProgress]:
    """A bar for each phase, on stderr, where somebody is there to see it."""
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield ignore
        return
    columns = (
        TextColumn("{task.description:<14.14}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def report(done: Done) -> None:
            if done.phase not in tasks:
                tasks[done.phase] = progress.add_task(done.phase, total=done.total_bytes)
            progress.update(tasks[done.phase], completed=done.done_bytes, total=done.total_bytes)

        yield report


@contextmanager
def steps(as_json: bool) -> Iterator[Callable[[str], None]]:
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield lambda text: None
        return
    with console.status("starting") as status:
        yield status.update


def table(store: Store, entries: list[Entry], usage: Usage) -> None:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("SNAPSHOT", "SIZE", "USED", "PRIORITY", "STATE"):
        shown.add_column(name, justify="right" if name in ("SIZE", "PRIORITY") else "left", overflow="fold")
    for entry in entries:
        shown.add_row(
            entry.snapshot_id, size(entry.size_bytes), _ago(entry.last_used), str(entry.state.priority), _state(entry)
        )
    if entries:
        Console().print(shown)
    rate = usage.hits.rate
    hits = "nobody asked yet" if rate is None else f"{rate:.0%} of {usage.hits.hits + usage.hits.misses} asked for"
    click.echo(
        f"{len(entries)} snapshots, {size(usage.used_bytes)} in {store.root}"
        f"{' (read-only)' if store.read_only else ''}, {size(usage.free_bytes)} free; hits: {hits}"
    )


def details(entry: Entry) -> dict[str, Any]:
    out = entry.summary()
    if entry.manifest is not None:
        manifest = msgspec.to_builtins(entry.manifest)
        for file in manifest["files"]:
            del file["chunks"]
        out["manifest"] = manifest
        out["content"] = entry.manifest.content
    return out


def page(entry: Entry) -> None:
    lines = {
        "id": entry.snapshot_id,
        "folder": str(entry.folder),
        "state": _state(entry),
        "size": size(entry.size_bytes),
        "last used": _ago(entry.last_used),
        "priority": str(entry.state.priority),
    }
    if entry.state.quarantine is not None and entry.quarantined:
        lines["quarantine"] = f"{entry.state.quarantine.kind}: {entry.state.quarantine.reason}"
    if entry.problem is not None:
        lines["problem"] = str(entry.problem)
    manifest = entry.manifest
    if manifest is not None:
        made = msgspec.to_builtins(manifest.fingerprint)
        lines |= {
            "made": f"{_ago(manifest.created)} by {manifest.writer}",
            "source": manifest.source.location
            + (f" at {manifest.source.revision}" if manifest.source.revision else ""),
            "content": f"blake3:{manifest.content}",
            "fingerprint": ", ".join(f"{key}={_short(value)}" for key, value in made.items() if value),
        }
        if manifest.canary is not None:
            lines["canary"] = f"{manifest.canary.prompt!r} gives {manifest.canary.text!r}"
        if manifest.measured.memory_bytes:
            memory = manifest.measured.memory_bytes.items()
            lines["memory"] = ", ".join(f"{name} {size(value)}" for name, value in memory)
        if manifest.measured.phases_s:
            phases = manifest.measured.phases_s.items()
            lines["phases"] = ", ".join(f"{name} {format_duration(value)}" for name, value in phases)
    for name, text in lines.items():
        click.echo(f"{name:<12} {text}")
    for file in manifest.files if manifest is not None else ():
        click.echo(f"{'file':<12} {file.name}  {size(file.size)}  {file.kind}")


def verified(snapshot_id: str, done: Restored | None, problem: CheckpointError | None, as_json: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"id": snapshot_id, "problem": None if problem is None else str(problem)}
    if done is not None:
        out |= {"bytes": done.total_bytes, "seconds": round(done.seconds, 3)}
    if not as_json:
        if problem is not None:
            click.secho(f"damaged  {problem}", fg="red")
        elif done is not None:
            speed = format_bytes(done.total_bytes / max(done.seconds, 1e-9))
            click.echo(f"good     {snapshot_id}  {size(done.total_bytes)} at {speed}/s")
    return out


def changed(entry: Entry, word: str, as_json: bool) -> None:
    click.echo(json.dumps(entry.summary()) if as_json else f"{word} {entry.snapshot_id}")


def _state(entry: Entry) -> str:
    words = []
    if entry.quarantined:
        words.append("quarantined")
    if entry.problem is not None:
        words.append("damaged")
    if entry.state.pinned:
        words.append("pinned")
    if entry.leased:
        words.append("in use")
    return ", ".join(words) or "ready"


def _ago(at: float) -> str:
    return "never" if at <= 0 else f"{format_duration(max(0.0, time.time() - at))} ago"


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text
