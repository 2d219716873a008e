"""``rewarm pull``: a hub's model into this machine's cache, ahead of the first request."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from rewarm.cli.options import json_option
from rewarm.cli.weights_errors import WeightsCommand
from rewarm.config import load
from rewarm.errors import InputInvalid
from rewarm.hub import HubReference, is_hub, parse_reference
from rewarm.units import format_bytes
from snapshots import HubSettings, PullOptions, pull
from snapshots import Progress as Bytes


@click.command("pull", cls=WeightsCommand, short_help="Download a hub's model ahead of its first request.")
@click.argument("target", metavar="MODEL")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Where MODEL is a model of this file.")
@json_option
def pull_command(target: str, config_path: Path | None, as_json: bool) -> None:
    """Download MODEL, hf:org/name[@revision] or a model of --config FILE, into the Hugging Face cache.

    Goes on where an earlier download was cut off. What is there already is compared with the hub, because a branch may
    have moved; a load takes what is there without asking.
    """
    reference = _reference(target, config_path)
    settings = HubSettings.read()
    console = Console(stderr=True)
    with _bar(console, quiet=as_json) as bar:
        task = bar.add_task(str(reference), total=None)

        def report(progress: Bytes) -> None:
            bar.update(
                task,
                completed=progress.done_bytes,
                total=progress.total_bytes or None,
                description=f"{progress.phase} {progress.file}",
            )

        path = asyncio.run(pull(reference, settings, PullOptions(report=report), refresh=not settings.offline))
    size = _size(path)
    if as_json:
        click.echo(json.dumps({"source": str(reference), "path": str(path), "bytes": size}))
    else:
        click.echo(f"{reference}: {format_bytes(size)} in {path}")


def _reference(target: str, config_path: Path | None) -> HubReference:
    if config_path is not None and not is_hub(target):
        config = load(config_path)
        names = {name: model for name, model in config.models.items() if target in (name, *model.aliases)}
        if not names:
            raise InputInvalid(f"{config_path} has no model {target!r}")
        (model,) = names.values()
        source = getattr(model, "source", None)
        if not is_hub(source):
            raise InputInvalid(f"{target!r} does not come from a hub: its source is {source or 'not named'}")
        target = str(source)
    try:
        return parse_reference(target)
    except ValueError as error:
        raise InputInvalid(str(error)) from error


def _bar(console: Console, *, quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    shown = not quiet and sys.stderr.isatty()
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not shown)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())
