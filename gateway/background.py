"""Work that is not a request: loops that must never end, and small errands that no request should wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from rewarm.errors import QueueUnavailable

_log = logging.getLogger("rewarm.gateway.background")

_BACKOFF_S = (0.1, 0.3, 1.0, 3.0, 5.0)
_STEADY_S = 30.0  # a loop that ran this long starts again with the shortest backoff


async def supervised(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a loop for ever: log what it dies of, start it again with backoff. Ends by cancellation only."""
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        started = loop.time()
        try:
            await run()
            _log.warning("loop=%s ended, restarting", name)
        except QueueUnavailable as error:
            _log.info("loop=%s waits for redis: %s", name, error.message)
        except Exception:  # noqa: BLE001  # a loop must outlive whatever broke it; the log has the trace
            _log.exception("loop=%s failed, restarting", name)
        if loop.time() - started > _STEADY_S:
            failures = 0
        await asyncio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
        failures += 1


class Background:
    """All loops of a gateway in one task group, and the errands.

    An errand is one call to Redis on behalf of a request that is over or must not wait: redeem, cancel, abandon. What
    cannot be done is dropped: leases expire by themselves, and the heartbeat finds tickets that got lost.
    """

    _RUNNERS = 4
    _MAX_ERRANDS = 20_000

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._errands: asyncio.Queue[tuple[str, Callable[[], Awaitable[object]]]] = asyncio.Queue(self._MAX_ERRANDS)
        self._busy = 0

    async def __aenter__(self) -> Background:
        await self._group.__aenter__()
        for n in range(self._RUNNERS):
            self.loop(f"errands-{n}", self._run_errands)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def loop(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(self._group.create_task(supervised(name, run), name=f"gateway-{name}"))

    def errand(self, name: str, run: Callable[[], Awaitable[object]]) -> None:
        try:
            self._errands.put_nowait((name, run))
        except asyncio.QueueFull:
            _log.warning("errand=%s dropped: %d wait", name, self._errands.qsize())

    async def settle(self, timeout_s: float) -> None:
        """Wait until the errands given so far are done, as far as Redis allows."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._errands.join()
        except TimeoutError:
            _log.warning("errands left undone=%d", self._errands.qsize())

    async def _run_errands(self) -> None:
        while True:
            name, run = await self._errands.get()
            try:
                await run()
            except QueueUnavailable as error:
                _log.info("errand=%s not done: %s", name, error.message)
            finally:
                self._errands.task_done()
