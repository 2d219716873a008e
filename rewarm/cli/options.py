"""Options and start-up steps that several commands share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from rewarm import log
from rewarm.config import Config, load
from rewarm.errors import RedisUnreachable
from rewarm.knative.names import ENV_REDIS_URL
from rewarm.paths import Paths, default_state_dir

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

config_argument = click.argument("config_path", metavar="FILE", type=click.Path(path_type=Path))


def _remember(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    """For ``main``: an error is then printed as JSON too."""
    ctx.meta["rewarm.json"] = value
    return value


json_option = click.option("--json", "as_json", is_flag=True, callback=_remember, help="JSON instead of text.")
json_log_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="REWARM_LOG_JSON",
    callback=_remember,
    help="Log lines as JSON objects. [env: REWARM_LOG_JSON=1]",
)
level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    envvar="REWARM_LOG_LEVEL",
    help="[env: REWARM_LOG_LEVEL]",
)


def process_options(command: F) -> F:
    """What `serve`, `gateway` and `worker` have in common."""
    return json_log_option(level_option(command))


def child_options(command: F) -> F:
    """What `serve` tells its children; nobody else needs them."""
    redis = click.option("--redis-url", hidden=True, default=None)
    parent = click.option("--parent", hidden=True, type=int, default=None)
    return redis(parent(command))


def paths_of(config: Config) -> Paths:
    return Paths.at(config.state_dir or default_state_dir(config.fleet))


def redis_of(config: Config, given: str | None) -> str:
    """The supervisor's private Redis, the environment's or the configured one. Raise RedisUnreachable where there is
    none."""
    url = given or os.environ.get(ENV_REDIS_URL) or config.redis.url
    if url is None:
        raise RedisUnreachable("the configuration names no redis.url, and only `rewarm serve` runs a private Redis")
    return url


def start_up(role: str, config_path: Path, *, as_json: bool, level: str) -> tuple[Config, Paths]:
    """Logging, configuration, folders. Raise ConfigInvalid or ConfigNotFound."""
    log.setup(role, json_lines=as_json, level=level)
    config = load(config_path)
    paths = paths_of(config)
    paths.make()
    return config, paths


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop: 8 % of the hot path's CPU, measured."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
