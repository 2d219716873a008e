"""Replies about jobs get lost on the way; every call is repeated, and changes nothing the second time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fleet import FleetClient, Jobs, Queue
from rewarm.jobs import JobState
from tests.faults.redis_proxy import RedisProxy, redis_proxy
from tests.fleet.helpers import enqueue
from tests.fleet.job_helpers import BOOT, claim_jobs, done, kept_bytes, read, run_next, spec, submit
from tests.fleet.lua_sources import checked_sources

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


@pytest_asyncio.fixture
async def proxy(redis_url: str) -> AsyncIterator[RedisProxy]:
    async with redis_proxy(redis_url) as running:
        yield running


@pytest_asyncio.fixture
async def jobs(proxy: RedisProxy, fleet_client: FleetClient) -> AsyncIterator[Jobs]:
    """Through the proxy."""
    client = await FleetClient.connect(proxy.url, fleet_client.keys.fleet, check=False)
    client.scripts.use(checked_sources())
    yield Jobs(client)
    await client.close()


async def warm(jobs: Jobs) -> None:
    """Redis knows all scripts, so that the reply that is lost is that of the script, and not NOSCRIPT."""
    client = jobs._client
    for source in client.scripts._source.values():
        await client.call("SCRIPT", "LOAD", source)


async def test_a_submission_makes_one_job(proxy: RedisProxy, jobs: Jobs, fleet_client: FleetClient) -> None:
    await warm(jobs)
    proxy.lose_the_reply_to(b"job_1")
    submitted = await jobs.submit(spec("job_1"), b"{}", idempotency=("key", "hash"))
    assert proxy.replies_lost == 1
    assert (submitted.id, submitted.position) == ("job_1", 0)
    assert (await Queue(fleet_client).waiting(["m"]))["m"].jobs == 1
    assert await fleet_client.call("HGET", fleet_client.keys.store, "n=A") == b"1"


async def test_a_hand_off_makes_one_job(proxy: RedisProxy, jobs: Jobs, fleet_client: FleetClient) -> None:
    await enqueue(Queue(fleet_client), "t")
    await warm(jobs)
    proxy.lose_the_reply_to(b"job_1")
    adopted = await jobs.adopt("t", "gw-1", spec("job_1", band=1), b"{}")
    assert proxy.replies_lost == 1
    assert adopted is not None and adopted.id == "job_1"
    waiting = (await Queue(fleet_client).waiting(["m"]))["m"]
    assert (waiting.count, waiting.jobs) == (0, 1)


async def test_a_claim_leases_each_job_once(proxy: RedisProxy, jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ("job_1", "job_2"):
        await submit(jobs, id_)
    await warm(jobs)
    proxy.lose_the_reply_to(b"grant-once-0")
    claimed = await claim_jobs(jobs._client, 1, request_id="once")
    assert proxy.replies_lost == 1
    assert [(lease.spec.id, lease.attempt) for lease in claimed.jobs] == [("job_1", 1)]
    assert (await read(jobs, "job_2")).state is JobState.QUEUED


async def test_a_chunk_is_written_once(proxy: RedisProxy, jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    await warm(jobs)
    kept = await kept_bytes(fleet_client)
    proxy.lose_the_reply_to(b"output")
    assert await jobs.chunk("job_1", BOOT, 1, 1, b"output", tokens=1)
    assert proxy.replies_lost == 1
    assert [chunk.data for chunk in await jobs.events("job_1")] == [b"output"]
    assert await kept_bytes(fleet_client) == kept + len(b"output")
    assert (await read(jobs, "job_1")).chunks == 1


async def test_an_end_is_written_once(proxy: RedisProxy, jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    await warm(jobs)
    proxy.lose_the_reply_to(b"the result")
    assert await jobs.finish("job_1", BOOT, 1, done(), b"the result")  # not: fenced out
    assert proxy.replies_lost == 1
    assert await jobs.result("job_1") == b"the result"
    assert [chunk.end for chunk in await jobs.events("job_1")] == [True]
    # An end that others wrote is not taken for one's own.
    assert not await jobs.finish("job_1", BOOT, 2, done(), b"another")
    assert not await jobs.finish("job_1", "other", 1, done(), b"another")


@pytest.mark.parametrize(("attempts", "state"), [(3, JobState.QUEUED), (1, JobState.FAILED)])
async def test_a_hand_back_counts_once(
    proxy: RedisProxy, jobs: Jobs, fleet_client: FleetClient, attempts: int, state: JobState
) -> None:
    await submit(jobs, "job_1", max_attempts=attempts)
    await run_next(fleet_client)
    await warm(jobs)
    proxy.lose_the_reply_to(b"the engine died")
    assert await jobs.requeue("job_1", BOOT, 1, spent=True, reason="the engine died")
    assert proxy.replies_lost == 1
    job = await read(jobs, "job_1")
    assert (job.state, job.spent) == (state, 1)


async def test_a_cancelling_is_done_once(proxy: RedisProxy, jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await warm(jobs)
    proxy.lose_the_reply_to(b"job_cancelled")
    assert await jobs.cancel("job_1", "A") in ("cancelled", "ended")
    assert proxy.replies_lost == 1
    assert (await read(jobs, "job_1")).state is JobState.CANCELLED


async def test_a_deletion_gives_its_bytes_back_once(proxy: RedisProxy, jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ("job_1", "job_2"):
        await submit(jobs, id_)
        await jobs.cancel(id_, "A")
    await warm(jobs)
    kept = await kept_bytes(fleet_client)
    proxy.lose_the_reply_to(b"EVALSHA")
    assert await jobs.delete("job_1", "A") in ("deleted", "unknown")
    assert proxy.replies_lost == 1
    assert await kept_bytes(fleet_client) == kept // 2
