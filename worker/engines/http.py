"""An engine's HTTP application on sockets that were bound before the engine loaded, with uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Any, Literal

import uvicorn

_KEEP_ALIVE_S = 75
"""Longer than a gateway keeps an idle connection (30 s), so that the gateway is the one that closes."""

_STOP_S = 0.5
"""uvicorn takes two ticks of 0.1 s to close idle connections."""


class Server(uvicorn.Server):  # type: ignore[misc]  # uvicorn is an engine's, and may not be installed
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the host's: the agent has drained before it sends one, and uvicorn would wait for streams."""
        yield


def make_server(app: Any, *, lifespan: Literal["on", "off"]) -> Server:
    return Server(
        uvicorn.Config(
            app,
            log_config=None,  # setting up all loggers anew takes 20 ms
            log_level="warning",
            access_log=False,
            ws="none",
            lifespan=lifespan,
            timeout_keep_alive=_KEEP_ALIVE_S,
            server_header=False,
        )
    )


@contextlib.asynccontextmanager
async def serving(server: Server, sockets: Sequence[socket.socket]) -> AsyncIterator[asyncio.Task[None]]:
    """Serve while inside; connections that are open on the way out are cut."""
    task = asyncio.create_task(server.serve(sockets=list(sockets)), name="uvicorn")
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the HTTP application did not start")
            await asyncio.sleep(0.005)  # uvicorn has no event for it
        yield task
    except BaseException:
        _cut(server)
        task.cancel()  # the engine is gone: nothing can be finished, and the agent should hear of it now
        raise
    server.should_exit = True
    await asyncio.wait((task,), timeout=_STOP_S)
    if not task.done():  # a stream still runs: the drain's deadline has passed, or nobody drained
        server.force_exit = True
        _cut(server)
        task.cancel()
        await asyncio.wait((task,), timeout=_STOP_S)


def _cut(server: Server) -> None:
    """Before the requests' tasks are cancelled: uvicorn answers 500 for one that is, if it still can. A connection that
    breaks says what is true, and a gateway tries elsewhere."""
    for connection in list(server.server_state.connections):
        if connection.transport is not None:
            connection.transport.abort()
