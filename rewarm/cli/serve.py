"""``rewarm serve FILE``: everything on one machine: Redis (unless configured), gateway with controller, worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click
from rich.console import Console

from fleet import FleetClient
from rewarm.cli import banner
from rewarm.cli.check import listen_problem, warnings
from rewarm.cli.live import Live
from rewarm.cli.options import config_argument, process_options, start_up
from rewarm.cli.redis_keeper import RedisKeeper
from rewarm.cli.supervisor import Child, Output, Supervisor
from rewarm.config import Config
from rewarm.errors import OperatorError, PortInUse
from rewarm.log import setup as setup_log
from rewarm.paths import Paths

log = logging.getLogger("rewarm.cli.serve")

READY_WITHIN_S = 60.0
"""How long the gateway may take to answer before `serve` stops waiting for it with the banner."""

_ASK_EVERY_S = 0.1
_ANSWER_WITHIN_S = 2.0


@click.command(short_help="Run Redis, gateway, controller and worker on this machine.")
@config_argument
@process_options
def serve(config_path: Path, as_json: bool, log_level: str) -> None:
    """Run Redis, gateway, controller and worker on this machine, until SIGTERM or Ctrl-C.

    Running requests may finish; a second signal hurries. FILE is read again when it changes, and on SIGHUP.
    """
    config, paths = start_up("serve", config_path, as_json=as_json, level=log_level)
    check_port(config)
    for finding in warnings(config):
        if finding.field != "gateway.listen":
            log.warning("check %s: %s", finding.field, finding.message)
    asyncio.run(_serve(config, paths, config_path, as_json=as_json, level=log_level))


def check_port(config: Config) -> None:
    """Raise PortInUse before anything is started: the gateway would find out in the middle of the start."""
    gateway = config.gateway
    problem = listen_problem(gateway.host, gateway.port) if gateway.port else ""
    if problem:
        raise PortInUse(problem)


async def _serve(config: Config, paths: Paths, config_path: Path, *, as_json: bool, level: str) -> None:
    console = Console(stderr=True)
    started = time.monotonic()
    if as_json:
        log.info("starting", extra={"event": "starting", "file": str(config_path)})
    else:
        banner.starting(console)
    live = Live(config, console) if console.is_terminal and not as_json else None
    if live is not None:
        setup_log("serve", level=level, stream=live)
    keeper = RedisKeeper(paths) if config.redis.url is None else None
    url = await keeper.start() if keeper is not None else await _checked(config)
    try:
        supervisor = Supervisor(
            _children(config, config_path, url, as_json=as_json, level=level, output=live.line if live else None),
            before_start=keeper.up if keeper is not None else None,
        )
        _on_signals(supervisor)
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(keeper.keep(), name="redis")] if keeper is not None else []
            if live is not None:
                background.append(group.create_task(live.run(), name="live"))
            announcing = _announce(config, paths, url, None if as_json else console, started)
            background.append(group.create_task(announcing, name="announce"))
            try:
                await supervisor.run()
            finally:
                for task in background:
                    task.cancel()
    except* OperatorError as errors:
        raise errors.exceptions[0] from None
    finally:
        # Last of all: gateway and worker have written their last words by now.
        if keeper is not None:
            await asyncio.shield(keeper.stop())
    log.info("stopped")


async def _announce(config: Config, paths: Paths, redis_url: str, console: Console | None, started: float) -> None:
    """Show the banner once the gateway answers; without a console (JSON) one line of the log."""
    if not config.gateway.port:
        return  # any free port: the gateway's log says which it got
    url = banner.base_url(config)
    deadline = started + READY_WITHIN_S
    while not await _ready(url):
        if time.monotonic() > deadline:
            log.warning("the gateway does not answer yet url=%s waited_s=%.0f", url, READY_WITHIN_S)
            return
        await asyncio.sleep(_ASK_EVERY_S)
    took_s = time.monotonic() - started
    if console is not None:
        banner.show(console, config, paths, redis_url, took_s)
        return
    fields = {"event": "ready", "url": url, "seconds": round(took_s, 2), "fleet": config.fleet, "logs": str(paths.logs)}
    log.info("ready url=%s seconds=%.1f", url, took_s, extra={**fields, "models": list(config.models)})


async def _ready(url: str) -> bool:
    """Does GET /ready answer 200? By hand: this process needs no HTTP client otherwise, and it must be cancellable."""
    at = urlsplit(url)
    writer = None
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(at.hostname, at.port)
            writer.write(f"GET /ready HTTP/1.1\r\nHost: {at.netloc}\r\nConnection: close\r\n\r\n".encode())
            return b" 200 " in await reader.readline()
    except (OSError, TimeoutError, ValueError):
        return False
    finally:
        if writer is not None:
            writer.close()


async def _checked(config: Config) -> str:
    """The configured Redis, found fit. Raise RedisUnreachable or RedisUnsuitable here, once, not in every child."""
    url = config.redis.url or ""
    client = await FleetClient.connect(url, config.fleet)
    await client.close()
    return url


def _on_signals(supervisor: Supervisor) -> None:
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, supervisor.signalled)
    # The gateway reads the file, and says what came of it; a worker takes its part of it at its start only.
    loop.add_signal_handler(signal.SIGHUP, supervisor.forward, signal.SIGHUP, "gateway")


def _children(
    config: Config, config_path: Path, url: str, *, as_json: bool, level: str, output: Output | None
) -> Sequence[Child]:
    common = [str(config_path), "--redis-url", url, "--parent", str(os.getpid()), "--log-level", level]
    if as_json:
        common.append("--json")
    deadlines = {
        "gateway": config.gateway.shutdown_deadline.total_seconds(),
        "worker": config.worker.shutdown_deadline.total_seconds(),
    }
    # -P: a worker.py in the folder somebody happens to be in must not become ours.
    return [
        Child(name, [sys.executable, "-P", "-m", "rewarm", name, *common], stop_within_s=deadline, output=output)
        for name, deadline in deadlines.items()
    ]
