"""Leaving: no new requests, held ones are told to try elsewhere, what runs may finish until the deadline."""

from __future__ import annotations

import asyncio
import logging

from gateway.calls import Calls

_log = logging.getLogger("rewarm.gateway.drain")

_LAST_WORDS_S = 5.0  # for the error events of what was cut off


class Drain:
    """``begun``: held and new requests get ``shutting_down``. ``expired``: running ones as well."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.begun = False
        self.expired = False

    def begin(self) -> None:
        self.begun = True
        self._calls.wake_all()

    async def finish(self, deadline_s: float) -> None:
        """Return when no request is left, or soon after the deadline."""
        self.begin()
        _log.info("draining requests=%d deadline_s=%.0f", len(self._calls), deadline_s)
        try:
            async with asyncio.timeout(deadline_s):
                await self._calls.wait_empty()
            return
        except TimeoutError:
            _log.warning("drain deadline passed, cutting off requests=%d", len(self._calls))
        self.expired = True
        self._calls.wake_all()
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._calls.wait_empty()
        except TimeoutError:
            _log.warning("requests left at exit=%d", len(self._calls))
