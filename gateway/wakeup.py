"""A sleeper that anybody may wake, also before it sleeps."""

from __future__ import annotations

import asyncio


class Wakeup:
    __slots__ = ("_wakeup", "_woken")

    def __init__(self) -> None:
        self._wakeup: asyncio.Future[None] | None = None
        self._woken = False  # by something that came while its owner was busy, for example writing to a client

    def wake(self) -> None:
        self._woken = True
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def wait(self) -> None:
        """Until :meth:`wake`; at once where it was called since the last time."""
        if not self._woken:
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None
        self._woken = False
