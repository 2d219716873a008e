"""What this gateway's keys have spent, told to the other gateways every second. Redis is on no request's way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from fleet import Spending
from gateway.limits.key_limits import KeyLimits
from rewarm.errors import QueueUnavailable

_log = logging.getLogger("rewarm.gateway.limits")

SHARE_EVERY_S = 1.0


class Sharing:
    """``limits`` gives the keys' limits of the moment, ``now_ms`` the time of Redis."""

    def __init__(
        self, spending: Spending, gateway: str, limits: Callable[[], Iterable[KeyLimits]], now_ms: Callable[[], int]
    ) -> None:
        self._spending = spending
        self._gateway = gateway
        self._limits = limits
        self._now_ms = now_ms

    async def run(self) -> None:
        while True:
            await self.try_share()
            await asyncio.sleep(SHARE_EVERY_S)

    async def try_share(self) -> None:
        try:
            await self.share()
        except QueueUnavailable as error:
            # What was last known of the others goes on, until it is a minute old; ours goes on counting.
            _log.debug("limits are not shared: %s", error.message)

    async def share(self) -> None:
        """Raise QueueUnavailable."""
        limits = [(one.tenant, name, window) for one in self._limits() for name, window in one.windows.items()]
        if not limits:
            return
        second = self._now_ms() // 1000
        told = [window.mine(second) for _, _, window in limits]
        calls = [(tenant, name, mine) for (tenant, name, _), mine in zip(limits, told, strict=True)]
        heard = await self._spending.share(self._gateway, second, calls)
        for (_, _, window), mine, spent in zip(limits, told, heard, strict=True):
            window.learn(mine, spent.others, spent.gateways)
