"""The receipts of wakes: what each was made of and who waited for it. For ``rewarm ps --last`` and jobs' statuses.

Bounded and forgotten by themselves: the fleet's newest are listed, a replica's last few kept, for a week.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fleet.client import FleetClient
from fleet.scripts import ArgList
from rewarm.messages import UnknownSchema, Waiter, Wake, WakeRecord, decode, encode

WAKES_LISTED = 200
WAKES_KEPT = 10  # of one replica; one that sleeps wakes often
WAITERS_KEPT = 20  # of one wake, by name
WAKES_TTL_MS = 7 * 24 * 3600 * 1000

_log = logging.getLogger("rewarm.fleet.wakes")


class Wakes:
    """Raise QueueUnavailable where Redis is out of reach; every call may be repeated."""

    def __init__(self, client: FleetClient) -> None:
        self._client = client
        self._keys = client.keys

    async def record(self, wake: Wake) -> None:
        keys = [self._keys.wakes_of(wake.replica), self._keys.wakes]
        line = f"{wake.ready_at_ms} {wake.replica}"
        arguments: ArgList = [wake.ready_at_ms, encode(wake), line, WAKES_LISTED, WAKES_KEPT, WAKES_TTL_MS]
        await self._client.scripts.run("wake", keys, arguments)

    async def waited(self, waiters: Sequence[tuple[Wake, Waiter]]) -> None:
        """Whoever waited for these wakes, in one round trip."""
        by_wake: dict[tuple[str, int], list[Waiter]] = {}
        for wake, waiter in waiters:
            by_wake.setdefault((wake.replica, wake.ready_at_ms), []).append(waiter)
        calls: list[tuple[list[str], ArgList]] = []
        for (replica, ready_at_ms), those in by_wake.items():
            arguments: ArgList = [ready_at_ms, WAITERS_KEPT, WAKES_TTL_MS]
            for one in those:
                arguments += [one.id, encode(one)]
            calls.append(([self._keys.wakes_of(replica)], arguments))
        await self._client.scripts.run_many("waited", calls)

    async def last(self, limit: int) -> list[WakeRecord]:
        """The newest of the fleet, newest first."""
        lines = await self._client.call("LRANGE", self._keys.wakes, 0, limit - 1)
        named = [(int(ready), replica) for ready, _, replica in (line.decode().partition(" ") for line in lines)]
        replicas = list(dict.fromkeys(replica for _, replica in named))
        records = {replica: await self.of(replica) for replica in replicas}
        found = [
            next((record for record in records[replica] if record.wake.ready_at_ms == ready), None)
            for ready, replica in named
        ]
        return [record for record in found if record is not None]

    async def of(self, replica: str) -> list[WakeRecord]:
        """Those of one replica that are kept, newest first."""
        fields = await self._client.call("HGETALL", self._keys.wakes_of(replica))
        wakes: dict[str, Wake] = {}
        waiters: dict[str, list[Waiter]] = {}
        counts: dict[str, int] = {}
        for raw, data in fields.items():
            name = raw.decode()
            ready, _, _ = name.partition("|")
            try:
                if "|" in name:
                    waiters.setdefault(ready, []).append(decode(data, Waiter))
                elif name.endswith("#"):
                    counts[name[:-1]] = int(data)
                else:
                    wakes[name] = decode(data, Wake)
            except UnknownSchema as error:
                _log.warning("wake ignored replica=%s field=%s error=%s", replica, name, error)
        return [
            WakeRecord(wake=wakes[ready], waited=counts.get(ready, 0), waiters=_longest(waiters.get(ready, [])))
            for ready in sorted(wakes, key=int, reverse=True)
        ]


def _longest(waiters: list[Waiter]) -> tuple[Waiter, ...]:
    return tuple(sorted(waiters, key=lambda one: -one.waited_s))
