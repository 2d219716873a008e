"""Short names for what the tests of durable jobs do all the time."""

from __future__ import annotations

import itertools
from typing import Any

from fleet import JOB_BANDS, Claimed, FleetClient, Jobs, Queue, Submitted
from rewarm.jobs import Job, JobLease, JobOutcome, JobSpec, JobState

BOOT = "boot-1"
_requests = itertools.count()


def spec(id_: str, **fields: Any) -> JobSpec:
    given = {"tenant": "A", "model": "m", "asked_model": "m", "path": "/v1/completions", **fields, "id": id_}
    given.setdefault("band", JOB_BANDS[given.get("priority", "normal")])
    return JobSpec(**given)


async def submit(jobs: Jobs, id_: str, *, body: bytes = b"{}", **fields: Any) -> Submitted:
    return await jobs.submit(spec(id_, **fields), body)


async def claim_jobs(
    client: FleetClient, count: int = 1, *, offers: int | None = None, boot: str = BOOT, request_id: str | None = None
) -> Claimed:
    request = request_id or f"lease-request-{next(_requests)}"
    grants = [f"grant-{request}-{i}" for i in range(count if offers is None else offers)]
    return await Queue(client).claim(
        "m", "worker", "replica", "unix:/g", grants, request_id=request, max_jobs=count, boot=boot
    )


async def run_next(client: FleetClient, *, boot: str = BOOT) -> JobLease:
    """The next job is leased to ``boot``."""
    (lease,) = (await claim_jobs(client, boot=boot)).jobs
    return lease


def names(claimed: Claimed) -> list[str]:
    return [lease.spec.id for lease in claimed.jobs]


def done(**fields: Any) -> JobOutcome:
    return JobOutcome(**{"state": JobState.COMPLETED, "http_status": 200, **fields})


async def read(jobs: Jobs, id_: str) -> Job:
    job = await jobs.get(id_)
    assert job is not None
    return job


async def kept_bytes(client: FleetClient, tenant: str | None = None) -> int:
    """Counted for all, or for one tenant."""
    return int(await client.call("HGET", client.keys.store, "b" if tenant is None else f"b={tenant}") or 0)
