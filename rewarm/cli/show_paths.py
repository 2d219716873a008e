"""``rewarm paths``: where things lie on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rewarm.cli.options import json_option, paths_of
from rewarm.config import Config, load


@click.command(short_help="Print where state, sockets, logs and Redis data are.")
@click.argument("config_path", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@json_option
def paths(config_path: Path | None, as_json: bool) -> None:
    """Print where state, sockets, logs and Redis data are. Without FILE: of the default fleet."""
    config = load(config_path) if config_path is not None else Config()
    found = paths_of(config)
    # By the configuration, whether they exist or not; then what engines of other models have left.
    logs = {name: found.engine_log(name) for name in config.models}
    for path in sorted(found.logs.glob("engine-*.log")):
        if path not in logs.values():
            logs[path.stem.removeprefix("engine-")] = path
    out = {
        "state": str(found.state),
        "run": str(found.run),
        "logs": str(found.logs),
        "redis": config.redis.url or str(found.redis_socket),
        "redis_data": None if config.redis.url else str(found.redis),
        "engine_logs": {name: str(path) for name, path in logs.items()},
    }
    if as_json:
        click.echo(json.dumps(out, indent=2))
        return
    for name in ("state", "run", "logs", "redis", "redis_data"):
        if out[name] is not None:
            click.echo(f"{name:<11} {out[name]}")
    for name, path in logs.items():
        click.echo(f"{'engine log':<11} {path}  ({name})")
