"""A proxy between a client and Redis that does what networks do: lose replies, delay, go silent, break connections."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit


class RedisProxy:
    """Listens on a unix socket at ``url``. All faults are off until asked for, and can be changed at any time."""

    def __init__(self, upstream_url: str, folder: Path) -> None:
        self._upstream = upstream_url
        self._path = folder / "proxy.sock"
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._lose: bytes | None = None
        self.url = f"unix://{self._path}"
        self.delay_s = 0.0  # each way
        self._speaking = asyncio.Event()
        self._speaking.set()
        self.replies_lost = 0

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self._path)

    async def stop(self) -> None:
        """Connections are refused and those open are cut, as when Redis ends."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
            self._server = None
        await self.cut()

    async def cut(self) -> None:
        """Break every connection; new ones are accepted."""
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def silent(self) -> bool:
        """While True nothing passes in either direction, and nothing is closed."""
        return not self._speaking.is_set()

    @silent.setter
    def silent(self, silent: bool) -> None:
        if silent:
            self._speaking.clear()
        else:
            self._speaking.set()

    def lose_the_reply_to(self, part: bytes) -> None:
        """The next request that contains ``part`` is carried out; its reply is lost and its connection breaks."""
        self._lose = part

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            upstream_reader, upstream_writer = await self._connect()
            try:
                await self._serve(reader, writer, upstream_reader, upstream_writer)
            finally:
                upstream_writer.close()
        except (OSError, asyncio.CancelledError):
            pass  # a cut connection just ends
        finally:
            self._connections.discard(task)
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._upstream)
        if parts.scheme == "unix":
            return await asyncio.open_unix_connection(parts.path)
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream_writer: asyncio.StreamWriter,
    ) -> None:
        losing = asyncio.Event()

        async def requests() -> None:
            while data := await reader.read(65536):
                await self._hold()
                if self._lose is not None and self._lose in data:
                    self._lose = None
                    losing.set()
                upstream_writer.write(data)

        async def replies() -> None:
            while data := await upstream_reader.read(65536):
                await self._hold()
                if losing.is_set():
                    self.replies_lost += 1
                    return
                writer.write(data)

        pumps = [asyncio.ensure_future(requests()), asyncio.ensure_future(replies())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _hold(self) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._speaking.wait()


@asynccontextmanager
async def redis_proxy(upstream_url: str) -> AsyncIterator[RedisProxy]:
    with tempfile.TemporaryDirectory(prefix="rwp") as folder:
        proxy = RedisProxy(upstream_url, Path(folder))
        await proxy.start()
        try:
            yield proxy
        finally:
            await proxy.stop()
