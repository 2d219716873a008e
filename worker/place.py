"""The worker of a place, in a pod: where its address comes from, and the small server that the cluster talks to.

Requests of clients never come here: gateways send them to a replica's gate, by the pod's address. Three paths
(``rewarm.knative.names``): *ready*, for probes; *hold*, which the leader keeps open for as long as the place is wanted,
so that Knative's autoscaler sees a request that runs; *drain*, the preStop hook of a Deployment's pod.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

from aiohttp import web

from rewarm.knative.names import DRAIN_PATH, HOLD_PATH, READY_PATH

_log = logging.getLogger("rewarm.worker.place")


class Worker(Protocol):
    """The agent, as its place server sees it."""

    drained: asyncio.Event  # nothing runs any more, and nothing will

    @property
    def heard(self) -> bool:
        """The fleet knows of it, and it takes what is wanted of it."""

    def drain(self) -> None: ...


class PlaceServer:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._held: set[asyncio.Future[str]] = set()

    def release(self) -> None:
        """What was wanted here has ended: whoever holds the pod may let it go."""
        for held in self._held:
            if not held.done():
                held.set_result("nothing is wanted here any more\n")

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[int]:
        """On all addresses; the port that it got."""
        app = web.Application()
        app.router.add_get(READY_PATH, self._ready)
        app.router.add_get(HOLD_PATH, self._hold)
        app.router.add_get(DRAIN_PATH, self._drain)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, None, port).start()
            got = int(runner.addresses[0][1])
            _log.info("event=place-server port=%d", got)
            yield got
        finally:
            await runner.cleanup()

    async def _ready(self, _: web.Request) -> web.Response:
        if self._worker.heard:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not registered, or draining\n")

    async def _hold(self, request: web.Request) -> web.StreamResponse:
        """The first byte comes at once: from then on Knative's limit for a response to start does not count."""
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"held\n")
        held: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._held.add(held)
        drained = asyncio.ensure_future(self._worker.drained.wait())
        try:
            await asyncio.wait((held, drained), return_when=asyncio.FIRST_COMPLETED)
        finally:
            drained.cancel()
            self._held.discard(held)
        await response.write((held.result() if held.done() else "drained\n").encode())
        await response.write_eof()
        return response

    async def _drain(self, _: web.Request) -> web.Response:
        self._worker.drain()
        await self._worker.drained.wait()
        return web.Response(text="drained\n")


def own_address(redis_url: str) -> str:
    """The address that this machine has towards Redis: in a pod, the pod's. Nothing is sent.

    Knative refuses ``fieldRef``, which would name it, unless the operator turns a feature on.
    """
    url = urlsplit(redis_url)
    host, port = url.hostname, url.port or 6379
    if url.scheme == "unix" or host is None:
        return "127.0.0.1"
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
