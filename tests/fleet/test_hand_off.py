"""A request whose client's patience ends becomes a job: in its place, and never beside itself."""

from __future__ import annotations

import pytest

from fleet import FleetClient, JobLimits, Jobs, Queue
from rewarm.errors import JobQuotaExceeded
from rewarm.jobs import JobState
from tests.fleet.helpers import claim, enqueue, ids, tickets
from tests.fleet.job_helpers import BOOT, claim_jobs, done, names, read, spec, submit

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


@pytest.fixture
def queue(fleet_client: FleetClient) -> Queue:
    return Queue(fleet_client)


@pytest.fixture
def jobs(fleet_client: FleetClient) -> Jobs:
    return Jobs(fleet_client)


async def test_it_keeps_its_place_among_those_whose_clients_wait(
    queue: Queue, jobs: Jobs, fleet_client: FleetClient
) -> None:
    for id_ in ids(5):
        await enqueue(queue, id_)
    await submit(jobs, "job_other", priority="high")
    enqueued_ms = (await queue.waiting(["m"]))["m"].oldest_ms

    adopted = await jobs.adopt("t0002", "gw-1", spec("job_1", band=1), b"{}")

    assert adopted is not None
    assert (adopted.id, adopted.created, adopted.position) == ("job_1", True, 2)
    waiting = (await queue.waiting(["m"]))["m"]
    assert (waiting.count, waiting.jobs, waiting.handed_off, waiting.highest_band) == (4, 2, 1, 1)
    assert enqueued_ms <= (await read(jobs, "job_1")).created_ms <= await fleet_client.time_ms()
    assert await queue.positions("m", ids(5)) == {"t0000": 0, "t0001": 1, "t0002": None, "t0003": 3, "t0004": 4}
    # The ticket is its gateway's no more.
    assert await queue.gateway_beat("gw-1", held=[("m", id_) for id_ in ids(5)]) == ["t0002"]
    await queue.gateway_leave("gw-1")
    claimed = await claim_jobs(fleet_client, 0, offers=9)
    assert (names(claimed), tickets(claimed)) == (["job_1"], [])


async def test_it_is_served_in_its_place_and_takes_no_room_of_the_jobs(
    queue: Queue, jobs: Jobs, fleet_client: FleetClient
) -> None:
    for id_ in ids(3):
        await enqueue(queue, id_)
    await submit(jobs, "job_other")
    await jobs.adopt("t0001", "gw-1", spec("job_1", band=1), b"{}")
    first = await claim_jobs(fleet_client, 0, offers=2)
    assert (tickets(first), names(first), first.waiting, first.jobs_waiting) == (["t0000"], ["job_1"], 1, 1)
    second = await claim_jobs(fleet_client, 1, offers=4)
    assert (tickets(second), names(second)) == (["t0002"], ["job_other"])


async def test_one_claim_leases_it_and_as_many_jobs_as_there_is_room_for(
    queue: Queue, jobs: Jobs, fleet_client: FleetClient
) -> None:
    await enqueue(queue, "t")
    await jobs.adopt("t", "gw-1", spec("job_1", band=1), b"{}")
    for id_ in ("job_2", "job_3"):
        await submit(jobs, id_)
    assert names(await claim_jobs(fleet_client, 1, offers=3)) == ["job_1", "job_2"]


async def test_a_granted_or_vanished_ticket_cannot_be_handed_off(
    queue: Queue, jobs: Jobs, fleet_client: FleetClient
) -> None:
    await enqueue(queue, "granted")
    (grant,) = (await claim(queue)).grants
    assert await jobs.adopt("granted", "gw-1", spec("job_1", band=1), b"{}") is None
    assert await jobs.adopt("never", "gw-1", spec("job_1", band=1), b"{}") is None
    await enqueue(queue, "waits")
    assert await jobs.adopt("waits", "gw-2", spec("job_1", band=1), b"{}") is None  # not its gateway
    assert await jobs.get("job_1") is None
    assert await queue.redeem("granted", grant.grant)


async def test_handed_off_twice_it_is_one_job(queue: Queue, jobs: Jobs, fleet_client: FleetClient) -> None:
    await enqueue(queue, "t")
    first = await jobs.adopt("t", "gw-1", spec("job_1", band=1), b"{}")
    again = await jobs.adopt("t", "gw-1", spec("job_1", band=1), b"{}")
    assert first is not None and again is not None
    assert (again.id, again.created) == (first.id, False)
    assert names(await claim_jobs(fleet_client, 5)) == ["job_1"]
    assert (await queue.waiting(["m"]))["m"].jobs == 0


async def test_without_room_for_a_job_the_ticket_waits_on(queue: Queue, jobs: Jobs, fleet_client: FleetClient) -> None:
    await enqueue(queue, "t")
    with pytest.raises(JobQuotaExceeded):
        await Jobs(fleet_client, JobLimits(max_jobs_tenant=0)).adopt("t", "gw-1", spec("job_1", band=1), b"{}")
    assert tickets(await claim(queue)) == ["t"]


async def test_it_returns_to_its_interactive_place(queue: Queue, jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(3):
        await enqueue(queue, id_)
    await jobs.adopt("t0000", "gw-1", spec("job_1", band=1), b"{}")
    await claim_jobs(fleet_client, 0, offers=1)
    await jobs.requeue("job_1", BOOT, 1, spent=True, reason="the engine died")
    job = await read(jobs, "job_1")
    assert (job.state, job.position) == (JobState.QUEUED, 0)
    (lease,) = (await claim_jobs(fleet_client, 0, offers=1)).jobs
    assert await jobs.finish("job_1", BOOT, lease.attempt, done(), b"")
