"""``rewarm snapshot …``: the weight snapshots of this machine, without gateway or Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rewarm.cli import snapshot_show as show_as
from rewarm.cli.options import json_option
from rewarm.cli.snapshot_create import Wanted, bring
from rewarm.cli.weights_errors import EXIT_DAMAGED, WeightsGroup
from rewarm.units import parse_size
from snapshots import (
    DEFAULT_FLOOR_BYTES,
    Bench,
    CheckpointError,
    Restored,
    RestoreOptions,
    Store,
    Throttle,
    default_root,
    render,
    verify_snapshot,
)


class Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_size(int(value) if isinstance(value, str) and value.isdigit() else value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--store``, ``--capacity``, ``--floor``; the command gets an open store."""
    import functools

    @functools.wraps(command)
    def with_store(root: Path | None, capacity: int | None, floor: int, **options: Any) -> Any:
        store = Store(root or default_root(), capacity_bytes=capacity, floor_bytes=floor)
        return command(store=store, **options)

    root = click.option(
        "--store",
        "root",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="REWARM_SNAPSHOTS",
        help=f"The store's folder. [env: REWARM_SNAPSHOTS; default: {default_root()}]",
    )
    capacity = click.option("--capacity", type=Size(), default=None, help="The most that the store may occupy.")
    floor = click.option(
        "--floor", type=Size(), default=DEFAULT_FLOOR_BYTES, show_default="2GiB", help="What stays free on the disk."
    )
    return root(capacity(floor(with_store)))


@click.group(cls=WeightsGroup, short_help="Weight snapshots: captured once, restored at disk speed.")
def snapshot() -> None:
    """Weight snapshots: captured once, restored at the speed of the disk, never torn."""


@snapshot.command(short_help="Make a snapshot of a model from its source.")
@click.argument("model")
@click.argument("source")
@click.option("--revision", help="Which revision of the model this is; part of the fingerprint.")
@click.option("--gguf", type=click.Choice(["dequantise", "as-is"]), default="dequantise", show_default=True)
@click.option("--limit", type=Size(), help="Bytes a second at most, for example 50MB.")
@click.option("--priority", type=int, help="Higher stays longer when room is needed.")
@click.option("--pin", is_flag=True, help="Never evict it.")
@click.option("--low-priority", is_flag=True, help="Disk work waits for everybody else's.")
@click.option("--allow-sparse", is_flag=True, help="Take files with holes, which read as zeros.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="For http(s) sources.")
@click.option("--s3-endpoint", help="Another address than AWS's, for s3:// sources. [env: AWS_ENDPOINT_URL]")
@store_options
@json_option
def create(store: Store, as_json: bool, **options: Any) -> None:
    """Make a snapshot of MODEL from SOURCE: a folder, a .gguf file, http(s)://… or s3://bucket/prefix."""
    wanted = Wanted(**options)
    with show_as.bar(as_json) as report:
        made = asyncio.run(bring(store, wanted, report))
    if wanted.pin or wanted.priority is not None:
        store.set_state(made.manifest.snapshot_id, pinned=wanted.pin or None, priority=wanted.priority)
    entry = store.find(made.manifest.snapshot_id)
    if as_json:
        click.echo(json.dumps(entry.summary() | {"new": made.new}))
    else:
        word = "made" if made.new else "is there already:"
        click.echo(f"{word} {entry.snapshot_id}  {show_as.size(entry.size_bytes)}")


@snapshot.command(name="list")
@store_options
@json_option
def list_(store: Store, as_json: bool) -> None:
    """Show what lies in the store."""
    entries, usage = store.list(), store.usage()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "store": str(store.root),
                    "read_only": store.read_only,
                    "snapshots": [entry.summary() for entry in entries],
                    "used_bytes": usage.used_bytes,
                    "free_bytes": usage.free_bytes,
                    "hits": usage.hits.hits,
                    "misses": usage.hits.misses,
                    "hit_rate": usage.hits.rate,
                }
            )
        )
        return
    show_as.table(store, entries, usage)


@snapshot.command(short_help="Show one snapshot: its source, its files, its canary.")
@click.argument("reference")
@store_options
@json_option
def show(store: Store, reference: str, as_json: bool) -> None:
    """Show one snapshot: what it was made from and for, its files, its canary."""
    entry = store.find(reference, quarantined=True)
    if as_json:
        click.echo(json.dumps(show_as.details(entry)))
    else:
        show_as.page(entry)


@snapshot.command(name="verify", short_help="Read snapshots and compare every digest.")
@click.argument("references", nargs=-1)
@click.option("--keep", is_flag=True, help="Do not quarantine what is damaged.")
@click.option("--limit", type=Size(), help="Bytes a second at most.")
@store_options
@json_option
def verify_(store: Store, references: tuple[str, ...], keep: bool, limit: int | None, as_json: bool) -> None:
    """Read snapshots (all of them, if none is named) and compare every digest. What is damaged goes into quarantine."""
    wanted = references or tuple(entry.snapshot_id for entry in store.list() if not entry.quarantined)
    results = []
    for reference in wanted:
        entry = store.find(reference)
        problem: CheckpointError | None = None
        done: Restored | None = None
        try:
            with store.lease(entry.snapshot_id) as lease, show_as.bar(as_json) as report:
                done = verify_snapshot(lease, RestoreOptions(report=report, throttle=Throttle(limit)))
        except CheckpointError as error:
            problem = error
            if not keep and not store.read_only:
                store.quarantine(entry.snapshot_id, "digest", str(error))
        results.append(show_as.verified(entry.snapshot_id, done, problem, as_json))
    if as_json:
        click.echo(json.dumps({"verified": results}))
    if any(result["problem"] for result in results):
        raise SystemExit(EXIT_DAMAGED)


@snapshot.command()
@click.argument("reference")
@click.option("--priority", type=int, help="Set the priority too.")
@store_options
@json_option
def pin(store: Store, reference: str, priority: int | None, as_json: bool) -> None:
    """Never evict this snapshot."""
    show_as.changed(store.set_state(reference, pinned=True, priority=priority), "pinned", as_json)


@snapshot.command()
@click.argument("reference")
@store_options
@json_option
def unpin(store: Store, reference: str, as_json: bool) -> None:
    """Let this snapshot be evicted again when room is needed."""
    show_as.changed(store.set_state(reference, pinned=False), "unpinned", as_json)


@snapshot.command()
@click.argument("reference")
@store_options
@json_option
def evict(store: Store, reference: str, as_json: bool) -> None:
    """Remove a snapshot. Who reads it just now reads on; its space comes back after that."""
    entry = store.find(reference, quarantined=True)
    gone = store.evict(entry.snapshot_id)
    if as_json:
        click.echo(json.dumps({"id": entry.snapshot_id, "size_bytes": entry.size_bytes, "removed": gone}))
    else:
        click.echo(f"evicted {entry.snapshot_id}" + ("" if gone else ", and it goes when its last reader is done"))


@snapshot.command(short_help="Remove what killed processes left behind.")
@click.option("--quarantined", is_flag=True, help="Remove what is in quarantine, too.")
@store_options
@json_option
def gc(store: Store, quarantined: bool, as_json: bool) -> None:
    """Remove what killed processes left, and what was evicted while it was read."""
    done = store.collect(quarantined=quarantined)
    if as_json:
        out = {"removed": done.removed, "freed_bytes": done.freed_bytes, "in_use": done.in_use}
        click.echo(json.dumps(out))
    else:
        waits = f"; {done.in_use} wait for their readers" if done.in_use else ""
        click.echo(f"removed {done.removed} folders, {show_as.size(done.freed_bytes)}{waits}")


@snapshot.command(short_help="Measure restores on this machine's disk.")
@click.option("--gb", type=float, default=3.0, show_default=True, help="How much to read in each round.")
@click.option("--rounds", type=int, default=7, show_default=True)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), default=None, help="On the disk to measure."
)
@json_option
def bench(gb: float, rounds: int, folder: Path | None, as_json: bool) -> None:
    """Measure restores on this machine's disk against fio and other readers, on bytes made for it."""
    with show_as.steps(as_json) as say:
        result = Bench(folder or default_root().parent, gb=gb, rounds=rounds, say=say).run()
    click.echo(json.dumps(result, indent=1) if as_json else render(result))
