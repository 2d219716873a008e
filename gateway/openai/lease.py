"""A gateway's right to work on a batch, and for how long it may rely on it without asking."""

from __future__ import annotations

import asyncio

from fleet import Batches

TRUST_S = 5.0
"""Half of the lease: what is sent to Redis while it is trusted has arrived, or failed, before another gateway may take
over. Handing in a line's job is not fenced by the batch's own script, so it hangs on this."""

_RENEW_S = 2.0


class LeaseLost(Exception):
    """Another gateway works on the batch by now, or it has ended."""


class Lease:
    def __init__(self, batches: Batches, batch: str, owner: str) -> None:
        self._batches = batches
        self._batch = batch
        self._owner = owner
        self._since = float("-inf")
        self._now = asyncio.get_running_loop().time

    async def keep(self, *, renew_s: float = _RENEW_S) -> None:
        """Renew it when it is older than ``renew_s``. Raise LeaseLost."""
        if self._now() < self._since + renew_s:
            return
        asked_at = self._now()
        if not await self._batches.claim(self._batch, self._owner):
            raise LeaseLost
        self._since = asked_at
        if self._now() > asked_at + TRUST_S:  # this process, or the answer, was stopped on the way
            raise LeaseLost
