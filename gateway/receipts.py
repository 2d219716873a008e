"""What happened to each request, written behind: no request waits for it, and Redis gets them in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from gateway.calls import Calls
from rewarm.errors import QueueUnavailable, RequestNotFound
from rewarm.messages import Receipt, Waiter, Wake

_log = logging.getLogger("rewarm.gateway.receipts")

FLUSH_EVERY_S = 0.5
_BATCH = 250
_MAX_PENDING = 20_000  # about 10 MB; while Redis is away the oldest are dropped beyond it


class ReceiptStore(Protocol):
    async def put_many(self, receipts: Sequence[Receipt]) -> None: ...
    async def get(self, request: str) -> Receipt | None: ...


class WakeStore(Protocol):
    async def waited(self, waiters: Sequence[tuple[Wake, Waiter]]) -> None: ...


class ReceiptBook:
    """Receipts of requests, and with them who waited for which wake."""

    def __init__(self, store: ReceiptStore, wakes: WakeStore, calls: Calls) -> None:
        self._store = store
        self._wakes = wakes
        self._calls = calls
        self._pending: dict[str, Receipt] = {}
        self.dropped = 0

    def add(self, receipt: Receipt) -> None:
        """The latest receipt of a request counts."""
        pending = self._pending
        pending[receipt.id] = receipt
        if len(pending) > _MAX_PENDING:
            del pending[next(iter(pending))]
            self.dropped += 1

    async def get(self, request_id: str, tenant: str) -> Receipt:
        """Raise RequestNotFound, also for another tenant's: nobody learns which ids exist."""
        call = self._calls.get(request_id)
        if call is not None:
            receipt: Receipt | None = call.receipt(asyncio.get_running_loop().time())
        else:
            receipt = self._pending.get(request_id) or await self._store.get(request_id)
        if receipt is None or receipt.tenant != tenant:
            raise RequestNotFound(f"no receipt of request {request_id!r}; receipts are kept for an hour")
        return receipt

    async def flush_often(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            try:
                await self.flush()
            except QueueUnavailable:
                _log.debug("receipts wait for redis count=%d", len(self._pending))

    async def flush(self) -> None:
        """Write all that is pending. Raise QueueUnavailable, with what was not written still pending."""
        while self._pending:
            batch = list(self._pending.values())[:_BATCH]
            await self._store.put_many(batch)
            await self._wakes.waited([(r.wake, _waiter(r)) for r in batch if r.wake is not None])
            for receipt in batch:
                if self._pending.get(receipt.id) is receipt:
                    del self._pending[receipt.id]


def _waiter(receipt: Receipt) -> Waiter:
    return Waiter(id=receipt.id, tenant=receipt.tenant, waited_s=round(receipt.waited_s, 3))
