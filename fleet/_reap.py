"""What ends tickets from the outside: leases that ran out, gateways that died, a leader that gives a model up.

All look first (which tickets, and where each lies) and then run a script that checks again under Redis's own clock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from fleet._leadership import LostLeadership
from fleet.client import FleetClient
from fleet.jobs.ends import return_lost
from fleet.jobs.places import JOB_GATEWAY
from fleet.keys import BANDS
from fleet.scripts import ArgList, Scripts
from rewarm.messages import Failure, TicketFailed, encode

WORKER_MEMORY_MS = 60_000
"""A dead worker's last heartbeat is forgotten after this."""

_FAIL_AT_ONCE = 200

_log = logging.getLogger("rewarm.fleet.queue")


@dataclass(frozen=True, slots=True)
class Reaped:
    returned: int = 0  # back to their old place
    dropped: int = 0  # gone with their gateway
    jobs_returned: int = 0
    jobs_ended: int = 0  # their attempts were used up, or they were to be cancelled


@dataclass(frozen=True, slots=True)
class Place:
    ticket: str
    model: str
    band: int
    gateway: str
    created_ms: int

    def keys(self, scripts: Scripts) -> list[str]:
        return scripts.place_keys(self.ticket, self.model, self.band, self.gateway)

    def arguments(self) -> list[str | int]:
        return [self.ticket, self.model, self.band, self.gateway]


async def places(client: FleetClient, ids: Sequence[str]) -> dict[str, Place]:
    """Where each ticket lies, without those that are gone."""
    found = await client.pipeline(
        [("HMGET", client.keys.ticket(id_), "model", "band", "gateway", "created") for id_ in ids]
    )
    return {
        id_: Place(id_, model.decode(), int(band), gateway.decode(), int(float(created)))
        for id_, (model, band, gateway, created) in zip(ids, found, strict=True)
        if model is not None
    }


async def put_back(client: FleetClient, tickets: Sequence[Place], grant: str = "") -> tuple[int, int]:
    """(returned, dropped). Without a ``grant``, only leases whose deadline has passed."""
    more = client.keys.bell, client.keys.demand
    outcomes = await client.scripts.run_many(
        "putback", [([*t.keys(client.scripts), *more], [*t.arguments(), grant]) for t in tickets]
    )
    return outcomes.count(b"returned"), outcomes.count(b"dropped")


async def bury(client: FleetClient, gateway: str, limit: int) -> int:
    """Drop what a dead gateway left, then the gateway itself. Return the number of tickets."""
    keys = client.keys
    dropped = 0
    while dropped < limit:
        ids = [id_.decode() for id_ in await client.call("SRANDMEMBER", keys.held(gateway), min(limit, 200))]
        found = await places(client, ids)
        if not found:
            break
        calls = [(place.keys(client.scripts), place.arguments()) for place in found.values()]
        gone = sum(await client.scripts.run_many("bury", calls))
        if gone == 0:
            return dropped  # it lives after all
        dropped += gone
    await client.scripts.run(
        "forget_gateway", [keys.gateways, keys.held(gateway), keys.grants(gateway), keys.pulse], [gateway]
    )
    return dropped


async def reap(client: FleetClient, limit: int) -> Reaped:
    keys, scripts = client.keys, client.scripts
    expired, gateways, workers = await scripts.run(
        "overdue", [keys.lease, keys.gateways, keys.workers, keys.pulse], [limit, WORKER_MEMORY_MS]
    )
    found = await places(client, [id_.decode() for id_ in expired])
    returned, dropped = await put_back(client, [place for place in found.values() if place.gateway != JOB_GATEWAY])
    jobs = [place.ticket for place in found.values() if place.gateway == JOB_GATEWAY]
    jobs_returned, jobs_ended = await return_lost(client, jobs)
    for gateway in (raw.decode() for raw in gateways):
        gone = await bury(client, gateway, limit)
        if gone:
            _log.info("dropped the tickets of a dead gateway gateway=%s tickets=%d", gateway, gone)
        dropped += gone
    for worker in (raw.decode() for raw in workers):
        await scripts.run("forget_worker", [keys.workers, keys.worker(worker)], [worker, WORKER_MEMORY_MS])
    if returned:
        _log.info("grants were not redeemed returned=%d", returned)
    if jobs:
        _log.info("leases of jobs ran out returned=%d ended=%d", jobs_returned, jobs_ended)
    return Reaped(returned, dropped, jobs_returned, jobs_ended)


async def fail_all(
    client: FleetClient, model: str, code: str, message: str, failure: Failure | None, leader: str, term: int
) -> int:
    keys = client.keys
    ids = [id_.decode() for id_ in await client.call("ZRANGE", keys.since(model), 0, -1)]
    told = 0
    # At least once, even without tickets: the caller learns here that its term is over.
    for start in range(0, max(1, len(ids)), _FAIL_AT_ONCE):
        some = (await places(client, ids[start : start + _FAIL_AT_ONCE])).values()
        names = [keys.leader, keys.since(model), keys.lease]
        arguments: ArgList = [leader, term]
        for place in some:
            if place.model != model or place.band not in BANDS:
                continue
            names += [keys.ticket(place.ticket), keys.ready(model, place.band), keys.virtual_time(model, place.band)]
            names += [keys.held(place.gateway), keys.grants(place.gateway)]
            event = TicketFailed(ticket=place.ticket, code=code, message=message, failure=failure)
            arguments += [place.ticket, place.gateway, encode(event)]
        outcome = await client.scripts.run("fail", names, arguments)
        if outcome < 0:
            raise LostLeadership(f"{leader} no longer leads in term {term}")
        told += int(outcome)
    return told


async def forget_queue(client: FleetClient, model: str, leader: str, term: int) -> None:
    """Of a removed model, once nobody waits for it."""
    keys = client.keys
    names = [keys.leader, keys.demand, keys.since(model), keys.jobs_since(model)]
    if await client.scripts.run("forget_queue", names, [leader, term, model]) < 0:
        raise LostLeadership(f"{leader} no longer leads in term {term}")
