"""Time, injected. Code that decides takes ``now``; code that acts takes a :class:`Clock`."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch. Only for what crosses processes; Redis ``TIME`` rules where leases are compared."""

    def monotonic(self) -> float:
        """Seconds, never going back, with no meaning outside this process."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
