"""Do the places of durable jobs agree, and has all that is left of an ended one an end? See :mod:`fleet.leaks`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.client import FleetClient
from fleet.jobs.limits import OVERHEAD_BYTES
from rewarm.jobs import TERMINAL

_FIELDS = (
    *("state", "model", "band", "tenant", "idem", "owner", "due", "spent", "bytes", "body", "out", "result", "expires"),
    "gateway",
)
_OF_A_JOB = re.compile(r"(?P<kind>spec|body|out|result):(?P<id>.+)")
_ENDED = {state.value for state in TERMINAL}


async def job_contradictions(
    client: FleetClient, names: Sequence[str], where: Mapping[str, list[str]], waiting: set[str]
) -> list[str]:
    """``names``: every key there is. ``where``: ticket → the ready sets and leases it is in. ``waiting``: the jobs that
    the models count."""
    prefix = client.keys.prefix
    ttls = dict(zip(names, await client.pipeline([("PTTL", name) for name in names]), strict=True))
    tickets = [name.removeprefix(f"{prefix}t:") for name in names if name.startswith(f"{prefix}t:")]
    read = await client.pipeline([("HMGET", client.keys.ticket(id_), *_FIELDS) for id_ in tickets])
    jobs = {
        id_: {field: None if value is None else value.decode() for field, value in zip(_FIELDS, values, strict=True)}
        for id_, values in zip(tickets, read, strict=True)
        if values[-1] == b"@job"
    }
    due = {id_.decode() for id_ in await client.call("ZRANGE", client.keys.due, 0, -1)}
    out: list[str] = []
    for id_, job in jobs.items():
        out += [f"{id_}: {wrong}" for wrong in _places(id_, job, where.get(id_, []), id_ in waiting, id_ in due)]
        out += [f"{id_}: {wrong}" for wrong in _keys(client, id_, job, ttls)]
    out += [f"{id_}: counted as a waiting job, and is none" for id_ in waiting - jobs.keys()]
    out += [f"{id_}: has a start deadline, and is no job" for id_ in due - jobs.keys()]
    for name in names:
        short = name.removeprefix(prefix)
        match = _OF_A_JOB.fullmatch(short)
        if match and ttls[name] == -1 and match["id"] not in jobs:
            out.append(f"{name}: there is no such job")
        elif short.startswith("idem:") and ttls[name] == -1:
            id_ = (await client.call("GET", name)).decode().partition("|")[0]
            out += (
                [] if f"{prefix}idem:{jobs.get(id_, {}).get('idem')}" == name else [f"{name}: {id_} does not know it"]
            )
    out += await _lists(client, [name for name in names if name.startswith(f"{prefix}jobs:")], jobs)
    return out + await _store(client, jobs)


def _places(id_: str, job: Mapping[str, Any], where: list[str], waits: bool, due: bool) -> list[str]:
    state = job["state"]
    expected = {"queued": [f"m:{job['model']}:ready:{job['band']}"], "in_progress": ["lease"]}.get(state, [])
    out = [] if where == expected else [f"state {state} but in {where}"]
    if waits != (state == "queued"):
        out.append(f"state {state} but counted as waiting: {waits}")
    if (job["owner"] is not None) != (state == "in_progress"):
        out.append(f"state {state} but owned by {job['owner']}")
    if due != (state == "queued" and job["due"] is not None and job["spent"] == "0"):
        out.append(f"state {state} but has a start deadline: {due}")
    return out


def _keys(client: FleetClient, id_: str, job: Mapping[str, Any], ttls: Mapping[str, int]) -> list[str]:
    keys = client.keys
    body, result = keys.body(id_), keys.result(id_)
    out = [] if keys.spec(id_) in ttls else ["has no spec"]
    if job["state"] not in _ENDED:
        return out + [f"has no {name}" for name in (body,) if name not in ttls]
    out += [f"ended, and {body} is still there"] if body in ttls else []
    if (job["result"] != "0") != (result in ttls):
        out.append(f"a result of {job['result']} bytes, and there: {result in ttls}")
    ending = [
        keys.ticket(id_),
        keys.spec(id_),
        keys.out(id_),
        *([keys.idempotency(job["idem"])] if job["idem"] else []),
    ]
    return out + [f"ended, and {name} has no TTL" for name in ending if ttls.get(name) == -1]


async def _lists(client: FleetClient, names: Sequence[str], jobs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    out: list[str] = []
    listed: dict[str, str] = {}
    for name in names:
        tenant = name.removeprefix(client.keys.jobs_of(""))
        listed |= {id_.decode(): tenant for id_ in await client.call("ZRANGE", name, 0, -1)}
    tenants = {id_: job["tenant"] for id_, job in jobs.items()}
    out += [f"{id_}: not rightly in the list of its tenant" for id_, _ in listed.items() ^ tenants.items()]
    entries = [entry.decode().split("|", 3) for entry in await client.call("ZRANGE", client.keys.ended, 0, -1)]
    over = {id_ for kind, id_, *_ in entries if kind == "j"}
    ended = {id_ for id_, job in jobs.items() if job["state"] in _ENDED}
    out += [f"{client.keys.ended}: disagrees with the jobs about {id_}" for id_ in over ^ ended]
    for kind, id_, size, _ in entries:
        job = jobs.get(id_)
        if job is not None:
            held = int(job["out"]) if kind == "o" else int(job["bytes"]) - int(job["out"])
            out += (
                [] if held == int(size) else [f"{client.keys.ended}: gives {size} bytes back of {id_}, it has {held}"]
            )
    return out


async def _store(client: FleetClient, jobs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Is what is counted what is kept?"""
    keys = client.keys
    out: list[str] = []
    told: dict[bytes, bytes] = await client.call("HGETALL", keys.store)
    sums: dict[str, int] = {}
    for id_, job in jobs.items():
        lengths = await client.pipeline([("STRLEN", name(id_)) for name in (keys.spec, keys.body, keys.result)])
        kept = OVERHEAD_BYTES + sum(lengths) + int(job["out"])
        out += [] if kept == int(job["bytes"]) else [f"{id_}: keeps {kept} bytes, counted with {job['bytes']}"]
        for name in ("b", f"b={job['tenant']}"):
            sums[name] = sums.get(name, 0) + int(job["bytes"])
        if job["state"] not in _ENDED:
            sums[f"n={job['tenant']}"] = sums.get(f"n={job['tenant']}", 0) + 1
    counted = {name.decode(): int(value) for name, value in told.items()}
    return out if counted == sums else [*out, f"{keys.store}: says {counted}, the jobs are {sums}"]
