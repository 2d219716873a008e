"""Between the engine and Redis: whoever reads from the one puts, one task writes to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from worker.jobs.batching import Batch


class Output:
    """``write`` takes number, data and tokens of a chunk; False: nothing more is to be written."""

    def __init__(self, write: Callable[[int, bytes, int], Awaitable[bool]]) -> None:
        self._write = write
        self._batch = Batch()
        self._changed = asyncio.Event()  # for the writer
        self._room = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    async def put(self, event: bytes, tokens: int) -> None:
        while self._batch.full:
            self._room.clear()
            await self._room.wait()
        first = self._batch.due_in_s(self._now()) is None
        self._batch.add(event, tokens, self._now())
        if first or self._batch.due_in_s(self._now()) == 0:
            self._changed.set()

    def close(self) -> None:
        self._batch.close()
        self._changed.set()

    async def write_out(self) -> None:
        """Until closed and empty, or fenced out."""
        while True:
            due_s = self._batch.due_in_s(self._now())
            if due_s is None and self._batch.closed:
                return
            if due_s != 0:
                self._changed.clear()
                try:
                    async with asyncio.timeout(due_s):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            chunk = self._batch.take()
            self._room.set()
            if not await self._write(chunk.seq, chunk.data, chunk.tokens):
                return
