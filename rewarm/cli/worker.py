"""``rewarm worker FILE``: the agent of this machine. It reads only redis, fleet and worker of the file."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path

import click

from fleet import FleetClient
from rewarm.cli import environment, orphan
from rewarm.cli.options import child_options, config_argument, process_options, redis_of, run, start_up
from rewarm.config import Config
from rewarm.heap import share_one_heap
from rewarm.knative.names import ENV_PLACE
from rewarm.paths import Paths

log = logging.getLogger("rewarm.cli.worker")


@click.command(short_help="Run this machine's agent, which starts and stops engines.")
@config_argument
@process_options
@child_options
@click.option(
    "--place",
    metavar="NAME",
    envvar=ENV_PLACE,
    help=f"Be the worker of this place of a cluster, in a pod: serve its one model. [env: {ENV_PLACE}]",
)
def worker(
    config_path: Path, as_json: bool, log_level: str, redis_url: str | None, parent: int | None, place: str | None
) -> None:
    """Run this machine's agent: it starts and stops engines as the leader wants.

    The models come from the leader; FILE needs only `redis.url`, and `fleet` and `worker` if not the defaults.
    SIGTERM drains: running requests may finish, then the engines stop. A second signal stops at once.
    """
    share_one_heap()  # before the first thread
    if parent is not None:
        orphan.tie_to_parent(parent)
    config, paths = start_up("worker", config_path, as_json=as_json, level=log_level)
    run(_worker(config, paths, redis_of(config, redis_url), place))


async def _worker(config: Config, paths: Paths, redis_url: str, place: str | None) -> None:
    from worker import own_address, run_agent

    only = ""
    if place:
        config, only = environment.at_place(config, place, redis_url, environment.address() or own_address(redis_url))

    # Its part of the file is budgets, folders and sockets, taken at the start. The default action would end us.
    words = "SIGHUP: a worker takes its part of the configuration at its start; restart it to change that"
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, log.warning, words)
    client = await FleetClient.connect(redis_url, config.fleet)
    try:
        await run_agent(config, paths, client, only=only, port=environment.place_port() if only else 0)
    finally:
        await client.close()
