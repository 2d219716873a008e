"""Where a job lies: the keys that every script of jobs declares, in the order of ``lua/_job.lua``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet.client import FleetClient
from fleet.keys import ALL_BANDS, Keys
from rewarm.jobs import JobLease, JobSpec
from rewarm.messages import UnknownSchema, decode

JOB_GATEWAY = "@job"
"""What a job has in the place of a gateway; JOB in ``lua/_lib.lua``."""

_log = logging.getLogger("rewarm.fleet.jobs")


@dataclass(frozen=True, slots=True)
class JobPlace:
    """What names a job's keys. ``model`` is the one whose queue it is in. All but that never changes: a job that waits
    may be moved to a fallback."""

    id: str
    model: str
    band: int
    tenant: str
    idempotency: str = ""  # the digest that names its key; '' without one

    def keys(self, keys: Keys) -> list[str]:
        return [
            keys.ticket(self.id),
            keys.lease,
            keys.ready(self.model, self.band),
            keys.virtual_time(self.model, self.band),
            keys.jobs_since(self.model),
            keys.spec(self.id),
            keys.body(self.id),
            keys.result(self.id),
            keys.out(self.id),
            keys.idempotency(self.idempotency) if self.idempotency else keys.ticket(self.id),
            keys.store,
            keys.jobs_of(self.tenant),
            keys.due,
            keys.ended,
            keys.hooks,
            keys.outbox(self.id),
            keys.bell,
            keys.pulse,
            keys.demand,
        ]


def ready_keys(keys: Keys, model: str) -> list[str]:
    """The ready sets of all bands, in the order of service."""
    return [keys.ready(model, band) for band in ALL_BANDS]


async def job_places(client: FleetClient, ids: Sequence[str]) -> dict[str, JobPlace]:
    """Without those that are no jobs (any more)."""
    found = await client.pipeline(
        [("HMGET", client.keys.ticket(id_), "gateway", "model", "band", "tenant", "idem") for id_ in ids]
    )
    return {
        id_: JobPlace(id_, model.decode(), int(band), tenant.decode(), (idem or b"").decode())
        for id_, (gateway, model, band, tenant, idem) in zip(ids, found, strict=True)
        if gateway == JOB_GATEWAY.encode()
    }


async def leases(client: FleetClient, model: str, replica: str, leased: Sequence[Any]) -> tuple[JobLease, ...]:
    """A claim's answer about jobs. One whose spec this process cannot read is left out: its lease runs out, the attempt
    counts, and the job ends when they are used up."""
    if not leased:
        return ()
    commands: list[tuple[str | int, ...]] = [("GET", client.keys.spec(id_.decode())) for id_, *_ in leased]
    commands += [("HGET", client.keys.ticket(id_.decode()), "chain") for id_, *_ in leased]
    found = await client.pipeline(commands)
    specs, chains = found[: len(leased)], found[len(leased) :]
    out = []
    for (id_, grant, attempt, deadline, created, spent), data, chain in zip(leased, specs, chains, strict=True):
        try:
            spec = decode(data or b"", JobSpec)
        except UnknownSchema as error:
            _log.error("job not run: its spec cannot be read job=%s error=%s", id_.decode(), error)
            continue
        out.append(
            JobLease(
                spec=spec,
                attempt=int(attempt),
                grant=grant.decode(),
                replica=replica,
                deadline_ms=int(deadline),
                created_ms=int(created),
                spent=int(spent),
                model=model,
                chain=(chain or b"").decode(),
            )
        )
    return tuple(out)
