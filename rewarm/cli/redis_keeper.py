"""Keeps the private Redis of ``serve`` running."""

from __future__ import annotations

import asyncio
import logging
import time

from fleet import EmbeddedRedis
from rewarm.errors import OperatorError
from rewarm.paths import Paths

log = logging.getLogger("rewarm.cli.redis")

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 10.0
STEADY_AFTER_S = 60.0


class RedisKeeper:
    def __init__(self, paths: Paths) -> None:
        self._redis = EmbeddedRedis(paths)
        self._up = asyncio.Event()

    async def start(self) -> str:
        """Its URL, once it answers. Raise what EmbeddedRedis raises: at the first start a person has to mend it."""
        url = await self._redis.start()
        self._up.set()
        return url

    async def up(self) -> None:
        await self._up.wait()

    async def keep(self) -> None:
        """Start it again whenever it ends, until cancelled. Its append-only file brings back what it knew."""
        backoff = FIRST_BACKOFF_S
        while True:
            started = time.monotonic()
            code = await self._redis.wait()
            self._up.clear()
            if time.monotonic() - started > STEADY_AFTER_S:
                backoff = FIRST_BACKOFF_S
            while not self._up.is_set():
                log.error("redis ended, restarting code=%d in_s=%.1f", code, backoff)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF_S)
                try:
                    await self._redis.start()
                except OperatorError as error:
                    log.error("redis does not start error=%s", error.message)
                else:
                    self._up.set()

    async def stop(self) -> None:
        await self._redis.stop()
