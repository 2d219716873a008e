"""Leases of jobs: who may write, and what becomes of an attempt that ends without an answer."""

from __future__ import annotations

import pytest

from fleet import FleetClient, Jobs, Queue, Reaped
from fleet.jobs.ends import return_lost
from rewarm.jobs import JobState
from tests.fleet.helpers import advance, ids
from tests.fleet.job_helpers import BOOT, claim_jobs, done, names, read, run_next, submit

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


@pytest.fixture
def jobs(fleet_client: FleetClient) -> Jobs:
    return Jobs(fleet_client)


async def test_a_job_whose_worker_is_silent_goes_back_to_its_place(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(3, "job_"):
        await submit(jobs, id_)
    await run_next(fleet_client)
    await advance(fleet_client, 14)
    assert await Queue(fleet_client).reap() == Reaped()
    assert await jobs.renew(BOOT, [("job_0000", 1)]) == {"job_0000": "ok"}
    await advance(fleet_client, 14)
    assert await Queue(fleet_client).reap() == Reaped()  # renewed
    await advance(fleet_client, 2)
    assert await Queue(fleet_client).reap() == Reaped(jobs_returned=1)
    job = await read(jobs, "job_0000")
    assert (job.state, job.position, job.attempt, job.spent, job.worker) == (JobState.QUEUED, 0, 1, 1, None)
    assert names(await claim_jobs(fleet_client)) == ["job_0000"]


async def test_a_worker_that_lost_its_lease_can_write_nothing(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await run_next(fleet_client, boot="slow")
    await jobs.chunk("job_1", "slow", 1, 1, b"from the first", tokens=1)
    await advance(fleet_client, 16)
    await Queue(fleet_client).reap()

    async def refused() -> None:
        assert await jobs.renew("slow", [("job_1", 1)]) == {"job_1": "lost"}
        assert not await jobs.chunk("job_1", "slow", 1, 2, b"late", tokens=2)
        assert not await jobs.finish("job_1", "slow", 1, done(), b"late")
        assert not await jobs.requeue("job_1", "slow", 1, spent=True, reason="late")

    await refused()  # while it waits
    await run_next(fleet_client, boot="quick")
    await refused()  # while another runs it
    assert await jobs.chunk("job_1", "quick", 2, 1, b"from the second", tokens=1)
    assert await jobs.finish("job_1", "quick", 2, done(), b"right")
    await refused()  # after the end
    assert await jobs.result("job_1") == b"right"
    chunks = await jobs.events("job_1")
    assert [(chunk.attempt, chunk.data) for chunk in chunks] == [
        (1, b"from the first"),
        (2, b"from the second"),
        (2, b""),
    ]


async def test_the_same_worker_is_fenced_by_its_own_older_attempt(jobs: Jobs, fleet_client: FleetClient) -> None:
    """It was stopped for a minute, lost the job and got it again: what the old attempt still writes must not count."""
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    await advance(fleet_client, 16)
    await Queue(fleet_client).reap()
    await run_next(fleet_client)
    assert await jobs.renew(BOOT, [("job_1", 1)]) == {"job_1": "lost"}
    assert not await jobs.chunk("job_1", BOOT, 1, 1, b"old", tokens=1)
    assert not await jobs.finish("job_1", BOOT, 1, done(), b"old")
    assert not await jobs.requeue("job_1", BOOT, 1, spent=True, reason="old")
    assert (await read(jobs, "job_1")).state is JobState.IN_PROGRESS


async def test_another_worker_cannot_write_the_running_attempt(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    assert await jobs.renew("other", [("job_1", 1)]) == {"job_1": "lost"}
    assert not await jobs.chunk("job_1", "other", 1, 1, b"x", tokens=1)
    assert not await jobs.finish("job_1", "other", 1, done(), b"x")
    assert not await jobs.requeue("job_1", "other", 1, spent=True, reason="x")
    # Its deadline did not move either.
    await advance(fleet_client, 16)
    assert (await Queue(fleet_client).reap()).jobs_returned == 1


async def test_a_poison_job_ends_with_its_reason(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1", max_attempts=3)
    await run_next(fleet_client)
    assert await jobs.requeue("job_1", BOOT, 1, spent=True, reason="the engine exited with signal 9")
    await run_next(fleet_client)
    await advance(fleet_client, 16)
    assert (await Queue(fleet_client).reap()).jobs_returned == 1
    await run_next(fleet_client)
    assert await jobs.requeue("job_1", BOOT, 3, spent=True, reason="the engine exited with signal 11")
    job = await read(jobs, "job_1")
    assert (job.state, job.error_code, job.spent) == (JobState.FAILED, "job_attempts_exhausted", 3)
    assert "signal 11" in (job.error_message or "")
    assert names(await claim_jobs(fleet_client)) == []


async def test_a_reap_ends_a_job_whose_attempts_are_used_up(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1", max_attempts=1)
    await run_next(fleet_client)
    await advance(fleet_client, 16)
    assert await Queue(fleet_client).reap() == Reaped(jobs_ended=1)
    job = await read(jobs, "job_1")
    assert (job.state, job.error_code) == (JobState.FAILED, "job_attempts_exhausted")
    assert "did not renew" in (job.error_message or "")


async def test_an_attempt_that_does_not_count_still_has_a_number_of_its_own(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    await submit(jobs, "job_1", max_attempts=1)
    for attempt in (1, 2, 3):
        lease = await run_next(fleet_client)
        assert (lease.attempt, lease.spent) == (attempt, 1)
        await jobs.chunk("job_1", BOOT, attempt, 1, b"x", tokens=1)
        assert await jobs.requeue("job_1", BOOT, attempt, spent=False, reason="the worker drains")
    job = await read(jobs, "job_1")
    assert (job.state, job.attempt, job.spent) == (JobState.QUEUED, 3, 0)
    assert [chunk.id for chunk in await jobs.events("job_1")] == ["1-1", "2-1", "3-1"]


async def test_a_reaper_that_looked_at_another_lease_changes_nothing(jobs: Jobs, fleet_client: FleetClient) -> None:
    """Between its look and its script the job may have been renewed, or returned and leased again."""
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    assert await return_lost(fleet_client, ["job_1"]) == (0, 0)
    await advance(fleet_client, 16)
    assert await return_lost(fleet_client, ["job_1"]) == (1, 0)
    assert await return_lost(fleet_client, ["job_1"]) == (0, 0)
    assert (await run_next(fleet_client)).spent == 2
    assert await return_lost(fleet_client, ["job_1"]) == (0, 0)


async def test_a_job_that_was_to_be_cancelled_does_not_go_back(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_, silent in (("job_1", True), ("job_2", False)):
        await submit(jobs, id_)
        await run_next(fleet_client)
        await jobs.cancel(id_, "A")
        if silent:
            await advance(fleet_client, 16)
            assert await Queue(fleet_client).reap() == Reaped(jobs_ended=1)
        else:
            assert await jobs.requeue(id_, BOOT, 1, spent=False, reason="the worker drains")
        assert (await read(jobs, id_)).state is JobState.CANCELLED


async def test_nothing_is_reaped_after_nobody_could_reach_redis(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    fleet_client.scripts.clock_offset_ms += 60_000  # a minute without any sign of life
    assert await Queue(fleet_client).reap() == Reaped()
    assert await jobs.renew(BOOT, [("job_1", 1)]) == {"job_1": "ok"}


async def test_a_job_returned_while_its_band_was_idle_is_the_head(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(5, "job_"):
        await submit(jobs, id_)
    claimed = await claim_jobs(fleet_client, 5)
    for lease in claimed.jobs[:-1]:
        await jobs.finish(lease.spec.id, BOOT, 1, done(), b"")
    await submit(jobs, "job_new")
    await jobs.requeue("job_0004", BOOT, 1, spent=True, reason="x")
    assert (await read(jobs, "job_0004")).position == 0


async def test_the_hand_back_of_one_of_many_leaves_the_others_leased(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(3, "job_"):
        await submit(jobs, id_)
    await claim_jobs(fleet_client, 3)
    await jobs.requeue("job_0001", BOOT, 1, spent=False, reason="x")
    answers = await jobs.renew(BOOT, [(id_, 1) for id_ in ids(3, "job_")])
    assert answers == {"job_0000": "ok", "job_0001": "lost", "job_0002": "ok"}
