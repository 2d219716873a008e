"""Background loops that never end silently: logged, restarted with backoff, cancelled with their task group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_log = logging.getLogger("rewarm.worker.supervise")


async def supervised(name: str, body: Callable[[], Awaitable[None]]) -> None:
    """Run ``body`` until it returns; after an exception, again. After a good while the pause is short again."""
    loop = asyncio.get_running_loop()
    pause_s = _FIRST_PAUSE_S
    while True:
        began = loop.time()
        try:
            await body()
            return
        except Exception:  # noqa: BLE001  # whatever it was: a loop that ends silently is worse
            _log.exception("event=loop-failed name=%s again_in_s=%.1f", name, pause_s)
        if loop.time() - began > 10 * _LONGEST_PAUSE_S:
            pause_s = _FIRST_PAUSE_S
        await asyncio.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


async def wait_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for ``event`` at most so long, and clear it; whether it was set."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
