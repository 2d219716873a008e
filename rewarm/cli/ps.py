"""``rewarm ps``: models, replicas, progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rewarm.cli import wakes_table
from rewarm.cli.api import Gateway, gateway_options
from rewarm.cli.devices_table import devices
from rewarm.cli.options import json_option
from rewarm.cli.pools_table import pools
from rewarm.cli.table import rows, table

MOST_WAKES = 200
PIPED_WIDTH = 240
"""Into a file or a pipe nothing is cut off."""


@click.command(short_help="Show every model, its replicas, and how far a load is.")
@gateway_options
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@click.option(
    "--last",
    type=click.IntRange(1, MOST_WAKES),
    is_flag=False,
    flag_value=10,
    metavar="[N]",
    help="Instead: the last N wakes, what each was made of and who waited.  [default: 10]",
)
@json_option
def ps(
    url: str | None, config_path: Path | None, key: str | None, watch: bool, last: int | None, as_json: bool
) -> None:
    """Show every model, its replicas, and how far a load is. With --json --watch: one object a line, a second."""
    gateway = Gateway.find(url, config_path, key)
    if last is not None:
        _last(gateway, last, as_json=as_json)
        return
    if as_json:
        while True:
            click.echo(json.dumps(gateway.status(), indent=None if watch else 2))
            if not watch:
                return
            time.sleep(1.0)
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    status = gateway.status()
    if not watch:
        console.print(render(status))
        return
    with Live(render(status), console=console, auto_refresh=False, screen=False) as live:
        while True:
            time.sleep(1.0)
            live.update(render(gateway.status()), refresh=True)


def _last(gateway: Gateway, last: int, *, as_json: bool) -> None:
    told = gateway.get(f"/rewarm/v1/wakes?last={last}")
    wakes = told.get("data", [])
    if as_json:
        click.echo(json.dumps(wakes, indent=2))
        return
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    console.print(wakes_table.table(wakes, int(told.get("now_ms") or 0)))


def render(status: dict[str, Any]) -> RenderableType:
    found = rows(status)
    models: RenderableType = table(found) if found else "no models are configured"
    workers = status.get("workers", ())
    parts: list[RenderableType] = [models, "", _workers(workers)]
    for more in (devices(workers), pools(workers)):
        if more is not None:
            parts += ["", more]
    parts += [Text(line, "yellow") for line in _configuration(status.get("configuration") or {})]
    return Group(*parts)


def _configuration(state: dict[str, Any]) -> list[str]:
    """Only where the file is not what runs."""
    out = []
    if state.get("problem"):
        out.append(f"the configuration was not reloaded, the old one runs: {state['problem']}")
    if state.get("restart"):
        out.append(f"changed in the configuration, but only after a restart: {', '.join(state['restart'])}")
    return out


def _workers(workers: Iterable[dict[str, Any]]) -> Table | str:
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("WORKER", "HOST", ""):
        out.add_column(name)
    for worker in workers:
        out.add_row(
            str(worker.get("worker")),
            str(worker.get("host", "")),
            "[yellow]draining[/]" if worker.get("draining") else "[dim]no pod[/]" if worker.get("absent") else "",
        )
    return out if out.row_count else "[yellow]no worker is connected: nothing can load[/]"
