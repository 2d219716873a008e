"""The gateway as a process: bind, serve until told to stop, drain, leave."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import uvloop

from fleet import FleetClient
from gateway.app import Gateway
from gateway.operators import make_token
from gateway.server import make_server
from gateway.webhooks import Secret
from rewarm.config import Config, ConfigFile, ConfigState, is_loopback
from rewarm.errors import PortInUse, UnsafeListen
from rewarm.paths import Paths
from rewarm.tracing import tracing_of

_log = logging.getLogger("rewarm.gateway.run")

_BACKLOG = 1024
_LAST_ANSWERS_S = 2.0


async def run(
    config: Config,
    paths: Paths,
    client: FleetClient,
    *,
    secret: str | None = None,
    webhook_secrets: Mapping[str, Secret] | None = None,
    environ: Mapping[str, str] | None = None,
    stop: asyncio.Event | None = None,
    listener: socket.socket | None = None,
    file: ConfigFile | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT (or ``stop`` is set), then drain and return.

    ``secret`` is the fleet's, needed where gates listen on TCP; ``webhook_secrets`` sign what clients are told of their
    jobs, by name; ``environ`` has the keys of remote models. ``listener`` is what :func:`bind` gave, where the caller
    has something else to start after it. A ``file`` that changes applies while it serves. Raise UnsafeListen or
    PortInUse before anything is served.
    """
    if not isinstance(asyncio.get_running_loop(), uvloop.Loop):
        raise RuntimeError("the gateway runs on uvloop: start it with uvloop.run()")
    listener = listener or bind(config)
    stop = stop or _until_signal()
    deadline_s = config.gateway.shutdown_deadline.total_seconds()
    with tracing_of(config.tracing, "gateway") as tracing:
        gateway = Gateway(
            config,
            client,
            secret=secret,
            operator_token=make_token(paths),
            webhook_secrets=webhook_secrets,
            tracing=tracing,
            environ=environ,
            file=(lambda: file.state) if file is not None else ConfigState,
        )
        if file is not None:
            file.subscribe(gateway.configure)
        await _serve(gateway, listener, stop, deadline_s)


async def _serve(gateway: Gateway, listener: socket.socket, stop: asyncio.Event, deadline_s: float) -> None:
    async with gateway:
        server = make_server(gateway.handle)
        try:
            await server.start(listener, backlog=_BACKLOG)
            _settle_collector()
            _log.info("listening address=%s gateway=%s", _address(listener), gateway.id)
            await stop.wait()
            _log.info("stopping gateway=%s", gateway.id)
            gateway.drain.begin()
            await server.stop_listening()  # new connections go to another gateway; those that exist are told
            await gateway.drain.finish(deadline_s)
        finally:
            await server.close(_LAST_ANSWERS_S)


def bind(config: Config) -> socket.socket:
    """The listening socket, before anything else starts. Raise UnsafeListen or PortInUse."""
    host, port = config.gateway.host, config.gateway.port
    if not config.keys and not is_loopback(host):
        raise UnsafeListen(f"without keys the gateway does not listen on {config.gateway.listen}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortInUse(f"{config.gateway.listen} cannot be listened on: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        what = (
            "is in use"
            if error.errno == errno.EADDRINUSE
            else f"cannot be listened on: {os.strerror(error.errno or 0)}"
        )
        raise PortInUse(f"{config.gateway.listen} {what}") from error
    return listener


def _settle_collector() -> None:
    """What is loaded stays: the collector need not walk all modules again and again under load."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _until_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(Path(name))
