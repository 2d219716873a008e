"""``rewarm gateway FILE``: one gateway process, which is also a candidate for the controller's leadership."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import click

import controller
from fleet import FleetClient, Registry
from rewarm.cli import environment, orphan
from rewarm.cli.options import child_options, config_argument, process_options, redis_of, run, start_up
from rewarm.config import Config, ConfigFile, catalogue
from rewarm.errors import OperatorError, QueueUnavailable, RedisUnreachable
from rewarm.ids import boot_id
from rewarm.paths import Paths

CATALOGUE_PATIENCE_S = 10.0

log = logging.getLogger("rewarm.cli.gateway")


@click.command(short_help="Run one gateway of several, over a Redis of yours.")
@config_argument
@process_options
@child_options
def gateway(config_path: Path, as_json: bool, log_level: str, redis_url: str | None, parent: int | None) -> None:
    """Run a gateway. Several may share a Redis; one of them leads.

    SIGTERM drains: running requests may finish. FILE is read again when it changes, and on SIGHUP.
    """
    if parent is not None:
        orphan.tie_to_parent(parent)
    config, paths = start_up("gateway", config_path, as_json=as_json, level=log_level)
    config = environment.at_listen(config)
    run(_gateway(config, paths, config_path, redis_of(config, redis_url)))


async def _gateway(config: Config, paths: Paths, config_path: Path, redis_url: str) -> None:
    import gateway as room

    # First of all: a gateway that cannot listen must not have led the fleet for a moment.
    with room.bind(config) as listener:
        client = await FleetClient.connect(redis_url, config.fleet)
        await _run(config, paths, config_path, redis_url, client, listener)


async def _run(
    config: Config, paths: Paths, config_path: Path, redis_url: str, client: FleetClient, listener: socket.socket
) -> None:
    try:
        reload = controller.Reload(catalogue(config), config.placement.rules())
        file = ConfigFile(config_path, config, adjust=environment.at_listen)
        file.subscribe(lambda new: reload.replace(catalogue(new), new.placement.rules()))
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            leading = group.create_task(_controller(redis_url, config, reload), name="controller")
            serving = group.create_task(_serve(config, paths, client, stop, listener, file), name="gateway")
            watching = group.create_task(file.watch(), name="watch") if config.gateway.watch else None
            _on_signals(stop, serving, file.reread)
            await asyncio.wait((serving,))
            if watching is not None:
                watching.cancel()
            # Last: while requests finish, workers still need a leader.
            leading.cancel()
    except* OperatorError as errors:
        raise errors.exceptions[0] from None
    finally:
        await client.close()


async def _serve(
    config: Config,
    paths: Paths,
    client: FleetClient,
    stop: asyncio.Event,
    listener: socket.socket,
    file: ConfigFile,
) -> None:
    import gateway as room

    if config.models:
        await _catalogue_published(client, stop)
    if not stop.is_set():
        secret = os.environ.get(config.secret_env)
        hooks = room.read_secrets(config.jobs.webhooks.secrets, os.environ)
        await room.run(
            config,
            paths,
            client,
            secret=secret,
            webhook_secrets=hooks,
            environ=os.environ,
            stop=stop,
            listener=listener,
            file=file,
        )


async def _catalogue_published(client: FleetClient, stop: asyncio.Event) -> None:
    """Answer only once a leader has said which models there are: until then every request would be a 404."""
    registry = Registry(client)
    try:
        async with asyncio.timeout(CATALOGUE_PATIENCE_S):
            while not stop.is_set():
                view = await registry.snapshot()
                term = await client.call("HGET", client.keys.catalogue, "@term")
                if view.leader is not None and int(term or 0) == view.term:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        log.warning("no leader has published the models yet: is there a gateway with `controller: true`?")
    except QueueUnavailable as error:
        log.warning("redis is away, the models are not known yet error=%s", error.message)


async def _controller(redis_url: str, config: Config, reload: controller.Reload) -> None:
    """With connections of its own: a burst of held requests must not keep the leader from renewing its term."""
    if not config.gateway.controller:
        return
    while True:
        try:
            client = await FleetClient.connect(redis_url, config.fleet, check=False)
            break
        except RedisUnreachable as error:  # it was there a moment ago, for the gateway
            log.warning("redis is away, no candidate for leader yet error=%s", error.message)
            await asyncio.sleep(1)
    try:
        backend = controller.backend(environment.backend_name(), config.knative)
        await controller.run(client, reload, boot_id("controller"), backend=backend)
    finally:
        await client.close()


def _on_signals(stop: asyncio.Event, serving: asyncio.Task[None], reread: Callable[[], object]) -> None:
    def stopping() -> None:
        if stop.is_set():
            log.warning("hurrying: running requests are cut off")
            serving.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping)
    loop.add_signal_handler(signal.SIGHUP, reread)
