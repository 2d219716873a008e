"""Jobs and their results lie in Redis: how much may, and what happens when Redis is full or was away."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fleet import FleetClient, JobLimits, Jobs, Queue, Reaped
from fleet.leaks import find_leaks
from rewarm.errors import (
    JobBodyTooLarge,
    JobQuotaExceeded,
    JobResultTooLarge,
    JobsFull,
    QueueUnavailable,
)
from rewarm.jobs import JobState
from rewarm.messages import encode
from tests.fleet.helpers import ids
from tests.fleet.job_helpers import BOOT, claim_jobs, done, kept_bytes, names, read, run_next, spec, submit
from tests.fleet.lua_sources import checked_sources
from tests.redis_server import LocalRedis

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


async def test_what_is_kept_is_counted_for_the_tenant_and_for_all(fleet_client: FleetClient) -> None:
    jobs = Jobs(fleet_client)
    body, output, result = b"b" * 1000, b"o" * 300, b"r" * 70
    fixed = 1024 + len(encode(spec("job_1")))
    await submit(jobs, "job_1", body=body)
    await submit(jobs, "job_2", body=body, tenant="B")
    assert await kept_bytes(fleet_client, "A") == fixed + 1000
    assert await kept_bytes(fleet_client) == 2 * (fixed + 1000)
    await run_next(fleet_client)
    await jobs.chunk("job_1", BOOT, 1, 1, output, tokens=1)
    assert await kept_bytes(fleet_client, "A") == fixed + 1300
    await jobs.finish("job_1", BOOT, 1, done(), result)
    assert await kept_bytes(fleet_client, "A") == fixed + 370
    assert await fleet_client.call("HGET", fleet_client.keys.store, "n=A") is None
    assert await find_leaks(fleet_client) == []


async def test_a_body_over_the_limit_is_refused(fleet_client: FleetClient) -> None:
    jobs = Jobs(fleet_client, JobLimits(max_body=10))
    with pytest.raises(JobBodyTooLarge, match="11 bytes"):
        await submit(jobs, "job_1", body=b"x" * 11)
    await submit(jobs, "job_1", body=b"x" * 10)


async def test_bytes_are_bounded_for_a_tenant_and_in_all(fleet_client: FleetClient) -> None:
    jobs = Jobs(fleet_client, JobLimits(max_bytes_tenant=3000, max_bytes_total=5500))
    for id_ in ("job_1", "job_2"):
        await submit(jobs, id_)
    with pytest.raises(JobQuotaExceeded, match="of at most 3000"):
        await submit(jobs, "job_3")
    for id_ in ("job_4", "job_5"):
        await submit(jobs, id_, tenant="B")
    with pytest.raises(JobsFull, match="of at most 5500") as refused:
        await submit(jobs, "job_6", tenant="C")
    assert not isinstance(refused.value, JobQuotaExceeded)
    assert await jobs.get_many(["job_3", "job_6"]) == [None, None]
    assert not (await submit(jobs, "job_1")).created  # what is there already is no new work
    # What ends early makes room at once.
    await jobs.delete("job_1", "A") if await jobs.cancel("job_1", "A") == "cancelled" else None
    await submit(jobs, "job_3")


async def test_the_number_of_a_tenants_unfinished_jobs_is_bounded(fleet_client: FleetClient) -> None:
    jobs = Jobs(fleet_client, JobLimits(max_jobs_tenant=2))
    for id_ in ("job_1", "job_2"):
        await submit(jobs, id_)
    with pytest.raises(JobQuotaExceeded, match="2 jobs"):
        await submit(jobs, "job_3")
    await submit(jobs, "job_4", tenant="B")
    await run_next(fleet_client)
    with pytest.raises(JobQuotaExceeded):
        await submit(jobs, "job_3")
    await jobs.finish("job_1", BOOT, 1, done(), b"")
    await submit(jobs, "job_3")


async def test_output_and_result_are_bounded(fleet_client: FleetClient) -> None:
    jobs = Jobs(fleet_client, JobLimits(max_result=10))
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    assert await jobs.chunk("job_1", BOOT, 1, 1, b"x" * 6, tokens=1)
    with pytest.raises(JobResultTooLarge):
        await jobs.chunk("job_1", BOOT, 1, 2, b"x" * 5, tokens=2)
    with pytest.raises(JobResultTooLarge):
        await jobs.finish("job_1", BOOT, 1, done(), b"x" * 11)
    # The next attempt has the whole bound again.
    await jobs.requeue("job_1", BOOT, 1, spent=True, reason="x")
    await run_next(fleet_client)
    assert await jobs.chunk("job_1", BOOT, 2, 1, b"x" * 10, tokens=1)


# --- a Redis of its own ----------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def client(own_redis: LocalRedis) -> AsyncIterator[FleetClient]:
    connected = await FleetClient.connect(own_redis.url, "bounds")
    connected.scripts.use(checked_sources())
    yield connected
    await connected.close()


async def test_a_full_redis_takes_no_new_job_and_lets_those_that_run_end(client: FleetClient) -> None:
    jobs, queue = Jobs(client), Queue(client)
    for id_ in ids(6, "job_"):
        await submit(jobs, id_)
    await submit(jobs, "job_due", start_deadline_ms=1)
    await claim_jobs(client, 3)
    await client.call("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(JobsFull, match="out of memory"):
        await submit(jobs, "job_new")
    assert await client.call("EXISTS", client.keys.ticket("job_new"), client.keys.body("job_new")) == 0

    assert await jobs.chunk("job_0000", BOOT, 1, 1, b"output", tokens=1)
    assert await jobs.renew(BOOT, [("job_0000", 1)]) == {"job_0000": "ok"}
    assert await jobs.finish("job_0000", BOOT, 1, done(), b"result")
    assert await jobs.requeue("job_0001", BOOT, 1, spent=True, reason="x")
    assert await jobs.cancel("job_0005", "A") == "cancelled"
    assert names(await claim_jobs(client)) == ["job_0001"]
    assert await jobs.expire() == 1
    assert await jobs.delete("job_0005", "A") == "deleted"
    assert await queue.reap() == Reaped()

    await client.call("CONFIG", "SET", "maxmemory", "0")
    assert await find_leaks(client) == []
    await submit(jobs, "job_new")


async def test_a_killed_redis_returns_with_every_job(own_redis: LocalRedis, client: FleetClient) -> None:
    jobs = Jobs(client)
    for id_ in ids(10, "job_"):
        await jobs.submit(spec(id_), b"body of " + id_.encode(), idempotency=(id_, "hash"))
    await claim_jobs(client, 2)
    await jobs.chunk("job_0000", BOOT, 1, 1, b"one", tokens=1)
    own_redis.kill()
    with pytest.raises(QueueUnavailable):
        await jobs.chunk("job_0000", BOOT, 1, 2, b"two", tokens=2)
    own_redis.start()
    assert await jobs.chunk("job_0000", BOOT, 1, 2, b"two", tokens=2)
    assert await jobs.renew(BOOT, [("job_0000", 1), ("job_0001", 1)]) == {"job_0000": "ok", "job_0001": "ok"}
    assert [chunk.data for chunk in await jobs.events("job_0000")] == [b"one", b"two"]
    assert not (await jobs.submit(spec("job_x"), b"", idempotency=("job_0005", "hash"))).created
    assert await jobs.finish("job_0000", BOOT, 1, done(), b"result")
    assert (await read(jobs, "job_0000")).state is JobState.COMPLETED
    assert await jobs.body("job_0007") == b"body of job_0007"
    assert await find_leaks(client) == []
