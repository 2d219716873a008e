"""What the gateways have let keys spend within the last minute, so that a limit holds over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.client import FleetClient
from fleet.scripts import ArgList

_KEEP_MS = 180_000


@dataclass(frozen=True, slots=True)
class Spent:
    """``others``: second of Redis' clock → amount, by all other gateways."""

    others: Mapping[int, int]
    gateways: int  # that are alive, the asking one included


class Spending:
    """Raises QueueUnavailable where Redis is out of reach; may be repeated."""

    def __init__(self, client: FleetClient) -> None:
        self._client = client

    async def share(
        self, gateway: str, second: int, spent: Sequence[tuple[str, str, Mapping[int, int]]]
    ) -> list[Spent]:
        """``spent``: (tenant, unit, second → all that ``gateway`` spent in it); one answer for each, in one round
        trip."""
        keys = self._client.keys
        calls: list[tuple[list[str], ArgList]] = []
        for tenant, unit, mine in spent:
            arguments: ArgList = [gateway, second, _KEEP_MS]
            for at, amount in mine.items():
                arguments += [at, amount]
            calls.append(([keys.spent(tenant, unit), keys.gateways], arguments))
        return [_spent(told) for told in await self._client.scripts.run_many("spend", calls)]


def _spent(told: Sequence[bytes | int]) -> Spent:
    others = {int(at): int(amount) for at, amount in zip(told[1::2], told[2::2], strict=True)}
    return Spent(others, int(told[0]))
