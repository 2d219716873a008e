"""The listening side: connections come and go here, and the old ones are swept out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from gateway.http.connection import Connection, Handler
from gateway.http.limits import KEEP_ALIVE_S, SWEEP_EVERY_S, WRITE_STALL_S
from gateway.http.response import Response

_ABORTED_WITHIN_S = 1.0


class Server:
    """``explain`` makes the answer to what is not HTTP (HeadTooLarge, NotServed, httptools.HttpParserError) and to
    whatever else a handler raises. Made inside a running loop."""

    def __init__(
        self,
        handler: Handler,
        explain: Callable[[Exception], Response],
        *,
        keep_alive_s: float = KEEP_ALIVE_S,
        write_stall_s: float = WRITE_STALL_S,
    ) -> None:
        self.handler = handler
        self.explain = explain
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.closing = False
        self._keep_alive_s = keep_alive_s
        self._write_stall_s = write_stall_s
        self._listening: asyncio.Server | None = None
        self._empty: asyncio.Event | None = None  # made when somebody waits for it
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket, *, backlog: int = 1024) -> None:
        self._listening = await self.loop.create_server(lambda: Connection(self), sock=listener, backlog=backlog)
        self._sweep = self.loop.call_later(SWEEP_EVERY_S, self._swept)

    async def stop_listening(self) -> None:
        """No new connections; those that exist go on."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
            await asyncio.sleep(0)

    async def close(self, timeout_s: float) -> None:
        """Idle connections end at once, the others after their answer, or after ``timeout_s`` in the middle of it."""
        await self.stop_listening()
        self.closing = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self.connections):
            connection.shut()
        if not await self._emptied(timeout_s):
            for connection in list(self.connections):
                connection.cancel()
            await self._emptied(_ABORTED_WITHIN_S)

    def entered(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self.closing:
            connection.abort()

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections and self._empty is not None:
            self._empty.set()

    async def _emptied(self, within_s: float) -> bool:
        self._empty = asyncio.Event()
        if not self.connections:
            self._empty.set()
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _swept(self) -> None:
        now = self.loop.time()
        for connection in list(self.connections):
            connection.sweep(now, self._keep_alive_s, self._write_stall_s)
        self._sweep = self.loop.call_later(SWEEP_EVERY_S, self._swept)
