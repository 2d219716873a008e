"""Do the places of files and batches agree? See :mod:`fleet.leaks`."""

from __future__ import annotations

from fleet.client import FleetClient
from rewarm.files import BATCH_ENDED, BatchState


async def file_contradictions(client: FleetClient) -> list[str]:
    keys = client.keys
    accounts: dict[str, str] = {
        name.decode(): value.decode() for name, value in _pairs(await client.call("HGETALL", keys.file_accounts))
    }
    ends = {id_.decode() for id_ in await client.call("ZRANGE", keys.file_ends, 0, -1)}
    out: list[str] = []
    sums: dict[str, int] = {}
    files = {name[1:]: value for name, value in accounts.items() if name.startswith("=")}
    for id_, value in files.items():
        size, _, tenant = value.partition(":")
        there = await client.call("HGET", keys.file(id_), "bytes")
        if there is None or int(float(there)) != int(size):
            out.append(f"{keys.file(id_)}: has {there}, accounted for with {size}")
        for name in ("@" + tenant, "*"):
            sums[name] = sums.get(name, 0) + int(size)
    told = {name: int(value) for name, value in accounts.items() if not name.startswith("=")}
    if {name: n for name, n in sums.items() if n} != {name: n for name, n in told.items() if n}:
        out.append(f"{keys.file_accounts}: says {told}, the files are {sums}")
    out += [f"{keys.file_ends}: disagrees with the accounts about {id_}" for id_ in sorted(ends ^ files.keys())]
    for id_ in await client.call("ZRANGE", keys.batches_at_work, 0, -1):
        state = await client.call("HGET", keys.batch(id_.decode()), "state")
        if state is None or BatchState(state.decode()) in BATCH_ENDED:
            out.append(f"{keys.batches_at_work}: {id_.decode()} is at work, and its state is {state}")
    return out


def _pairs(reply: object) -> list[tuple[bytes, bytes]]:
    if isinstance(reply, dict):
        return list(reply.items())
    items: list[bytes] = list(reply)  # type: ignore[call-overload]  # RESP2: flat
    return list(zip(items[::2], items[1::2], strict=True))
