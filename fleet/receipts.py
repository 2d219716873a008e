"""What happened to each request, readable for an hour."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.client import FleetClient
from rewarm.messages import Receipt, decode, encode

RECEIPT_TTL_S = 3600


class Receipts:
    def __init__(self, client: FleetClient) -> None:
        self._client = client

    async def put_many(self, receipts: Sequence[Receipt]) -> None:
        """Write them in one round trip; a later receipt of the same request replaces the earlier one."""
        if receipts:
            keys = [self._client.keys.receipt(receipt.id) for receipt in receipts]
            await self._client.scripts.run("receipts", keys, [RECEIPT_TTL_S, *map(encode, receipts)])

    async def get(self, request: str) -> Receipt | None:
        data = await self._client.call("GET", self._client.keys.receipt(request))
        return None if data is None else decode(data, Receipt)
