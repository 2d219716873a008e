"""Does every key of a fleet have an end? ``python -m fleet.leaks URL FLEET`` prints those that do not.

It exits with 1 when there is one. A key either has a TTL, or is one of a few that stay (one per fleet, model or
worker), or is *live*: there exactly while tickets or jobs are. For the live ones the places must agree, which is also
the queue's invariant: every ticket is in exactly one of ready and lease, is counted where it waits, and is known under
its gateway. Every job is in exactly one of ready, lease and ended, and what is kept for jobs is what is counted.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable
from typing import Any

from fleet._file_leaks import file_contradictions
from fleet._job_leaks import job_contradictions
from fleet.client import FleetClient
from fleet.jobs.places import JOB_GATEWAY
from fleet.keys import Life

_READY = re.compile(r"m:(?P<model>.+):ready:(?P<band>\d+)")
_VIRTUAL_TIME = re.compile(r"m:(?P<model>.+):vt:(?P<band>\d+)")
_SINCE = re.compile(r"m:(?P<model>.+):(?P<whose>since|jobs)")


async def find_leaks(client: FleetClient) -> list[str]:
    """One line for each key without an end and for each contradiction; run it while nobody writes."""
    keys = client.keys
    names = await _scan(client)
    ttls = await client.pipeline([("PTTL", name) for name in names])
    out = [
        f"{name}: no TTL, and not on the list in fleet/keys.py"
        for name, ttl in zip(names, ttls, strict=True)
        if ttl == -1 and keys.life(name) is Life.TTL
    ]
    out += await _contradictions(client, names)
    return out + await file_contradictions(client)


async def _scan(client: FleetClient) -> list[str]:
    cursor, found = b"0", set[str]()
    while True:
        cursor, batch = await client.call("SCAN", cursor, "MATCH", f"{client.keys.prefix}*", "COUNT", 1000)
        found.update(key.decode() for key in batch)
        if int(cursor) == 0:
            return sorted(found)


async def _contradictions(client: FleetClient, names: list[str]) -> list[str]:
    keys = client.keys
    rest = {name.removeprefix(keys.prefix): name for name in names if keys.life(name) is Life.LIVE}
    where: dict[str, list[str]] = {}  # ticket → its places
    counted: dict[str, set[str]] = {}  # model → tickets and jobs in its `since`
    jobs: set[str] = set()
    waiting: dict[str, set[str]] = {}  # model → tickets in any `ready`
    out: list[str] = []
    for short, name in rest.items():
        if match := _READY.fullmatch(short):
            members = await _members(client, "ZRANGE", name)
            waiting.setdefault(match["model"], set()).update(members)
            for ticket in members:
                where.setdefault(ticket, []).append(short)
        elif match := _SINCE.fullmatch(short):
            members = await _members(client, "ZRANGE", name)
            out += [f"{name}: {id_} is counted twice" for id_ in members & counted.get(match["model"], set())]
            counted.setdefault(match["model"], set()).update(members)
            jobs |= members if match["whose"] == "jobs" else set()
        elif short == "lease":
            for ticket in await _members(client, "ZRANGE", name):
                where.setdefault(ticket, []).append(short)
        elif match := _VIRTUAL_TIME.fullmatch(short):
            out += [] if f"m:{match['model']}:ready:{match['band']}" in rest else [f"{name}: nobody waits there"]
    for model in waiting.keys() | counted.keys():
        differing = waiting.get(model, set()) ^ counted.get(model, set())
        out += [f"{keys.since(model)}: disagrees with the ready sets about {ticket}" for ticket in differing]
    hashes = {short[2:] for short in rest if short.startswith("t:")}
    out += await _tickets(client, where, hashes, [short[5:] for short in rest if short.startswith("held:")])
    return out + await job_contradictions(client, names, where, jobs)


async def _tickets(
    client: FleetClient, where: dict[str, list[str]], hashes: set[str], gateways: list[str]
) -> list[str]:
    out = [f"{ticket}: in {places} without a hash" for ticket, places in where.items() if ticket not in hashes]
    held: dict[str, set[str]] = {}
    known = sorted(hashes)
    fields = await client.pipeline(
        [("HMGET", client.keys.ticket(ticket), "model", "band", "gateway", "state") for ticket in known]
    )
    for ticket, (model, band, gateway, state) in zip(known, fields, strict=True):
        if gateway == JOB_GATEWAY.encode():
            continue
        expected = "lease" if state == b"granted" else f"m:{model.decode()}:ready:{int(band)}"
        if where.get(ticket) != [expected]:
            out.append(f"{ticket}: state {state.decode()} but in {where.get(ticket)}")
        held.setdefault(gateway.decode(), set()).add(ticket)
    for gateway in gateways:
        held_here = await _members(client, "SMEMBERS", client.keys.held(gateway))
        differing = held_here ^ held.pop(gateway, set())
        out += [f"{client.keys.held(gateway)}: disagrees with the tickets about {ticket}" for ticket in differing]
    out += [f"{gateway}: not known to hold {sorted(tickets)}" for gateway, tickets in held.items()]
    return out


async def _members(client: FleetClient, command: str, name: str) -> set[str]:
    bounds = (0, -1) if command == "ZRANGE" else ()
    members: Iterable[Any] = await client.call(command, name, *bounds)
    return {member.decode() for member in members}


async def _main(url: str, fleet: str) -> int:
    client = await FleetClient.connect(url, fleet, check=False)
    try:
        leaks = await find_leaks(client)
    finally:
        await client.close()
    for leak in leaks:
        sys.stdout.write(leak + "\n")
    return 1 if leaks else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m fleet.leaks URL FLEET")
    sys.exit(asyncio.run(_main(sys.argv[1], sys.argv[2])))
