"""Durable jobs as gateways and workers use them."""

from __future__ import annotations

import asyncio

import pytest

from fleet import Chunk, FleetClient, Jobs, Queue
from rewarm.errors import IdempotencyConflict
from rewarm.jobs import JobOutcome, JobState, WebhookSpec
from tests.fleet.helpers import enqueue, ids, tickets
from tests.fleet.job_helpers import BOOT, claim_jobs, done, names, read, run_next, spec, submit

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


@pytest.fixture
def jobs(fleet_client: FleetClient) -> Jobs:
    return Jobs(fleet_client)


async def test_from_submission_to_result(jobs: Jobs, fleet_client: FleetClient) -> None:
    # A client submits; it is told its place.
    submitted = await jobs.submit(spec("job_1", metadata={"page": "7"}), b'{"prompt":"hello"}')
    assert (submitted.id, submitted.created, submitted.position) == ("job_1", True, 0)
    job = await read(jobs, "job_1")
    assert (job.state, job.position, job.attempt) == (JobState.QUEUED, 0, 0)
    assert job.spec.metadata == {"page": "7"}

    # A worker with a free slot leases it and fetches the body.
    (lease,) = (await claim_jobs(fleet_client)).jobs
    assert (lease.spec, lease.attempt, lease.created_ms) == (job.spec, 1, job.created_ms)
    assert lease.grant.startswith("grant-")
    assert await jobs.body("job_1") == b'{"prompt":"hello"}'
    running = await read(jobs, "job_1")
    assert (running.state, running.worker, running.replica) == (JobState.IN_PROGRESS, "worker", "replica")
    assert running.position is None

    # It writes output, and renews its lease.
    assert await jobs.chunk("job_1", BOOT, 1, 1, b"data: one\n\n", tokens=1)
    assert await jobs.chunk("job_1", BOOT, 1, 2, b"data: two\n\n", tokens=2)
    assert await jobs.renew(BOOT, [("job_1", 1)]) == {"job_1": "ok"}
    assert (await read(jobs, "job_1")).tokens == 2

    # Whoever follows reads it in order, also from the middle, and learns of the end.
    assert [chunk.data for chunk in await jobs.events("job_1")] == [b"data: one\n\n", b"data: two\n\n"]
    assert await jobs.finish("job_1", BOOT, 1, done(usage={"total_tokens": 9}, tokens=3), b'{"choices":[]}')
    assert await jobs.events("job_1", "1-1") == [
        Chunk("1-2", 1, 2, b"data: two\n\n"),
        Chunk("1-3", 1, 3, b"", end=True),
    ]

    # The result stays, the body goes.
    ended = await read(jobs, "job_1")
    assert (ended.state, ended.http_status, ended.usage) == (JobState.COMPLETED, 200, {"total_tokens": 9})
    assert (ended.tokens, ended.chunks, ended.result_bytes) == (3, 2, 14)
    assert ended.ended_ms is not None and ended.expires_ms == ended.ended_ms + 7 * 86_400_000
    assert await jobs.result("job_1") == b'{"choices":[]}'
    assert await jobs.body("job_1") is None


async def test_jobs_are_served_after_every_waiting_client_and_by_priority(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    queue = Queue(fleet_client)
    for priority in ("low", "normal", "high"):
        await submit(jobs, f"job_{priority}", priority=priority)
    await enqueue(queue, "client", band=2)
    waiting = (await queue.waiting(["m"]))["m"]
    assert (waiting.count, waiting.jobs, waiting.handed_off, waiting.highest_band) == (1, 3, 0, 2)
    assert [(await read(jobs, f"job_{name}")).position for name in ("high", "normal", "low")] == [1, 2, 3]

    claimed = await claim_jobs(fleet_client, 2, offers=5)

    assert tickets(claimed) == ["client"]
    assert names(claimed) == ["job_high", "job_normal"]  # no more than was asked for, though offers were left
    assert (claimed.waiting, claimed.jobs_waiting, claimed.highest_waiting_band) == (0, 1, 5)
    assert len({lease.grant for lease in claimed.jobs} | {grant.grant for grant in claimed.grants}) == 3


async def test_a_claim_without_room_for_jobs_leaves_them(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    claimed = await claim_jobs(fleet_client, 0, offers=2)
    assert (claimed.jobs, claimed.jobs_waiting) == ((), 1)


async def test_jobs_do_not_count_against_the_bound_of_waiting_clients(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(5, "job_"):
        await submit(jobs, id_)
    assert (await enqueue(Queue(fleet_client), "client", max_waiting=1)).position == 0


async def test_a_tenants_thousand_jobs_do_not_delay_anothers_one(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(1000, "job_a"):
        await submit(jobs, id_)
    assert (await submit(jobs, "job_b", tenant="B")).position == 1


async def test_nor_does_a_million_that_arrived_before(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(3, "job_a"):
        await submit(jobs, id_)
    await fleet_client.call("HSET", fleet_client.keys.virtual_time("m", 4), "#", 1_000_000)
    assert (await submit(jobs, "job_b", tenant="B")).position == 1


async def test_a_repeated_claim_leases_nothing_more(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(4, "job_"):
        await submit(jobs, id_)
    first = await claim_jobs(fleet_client, 2, request_id="same")
    assert await claim_jobs(fleet_client, 2, request_id="same") == first
    assert (await Queue(fleet_client).waiting(["m"]))["m"].jobs == 2


async def test_the_same_key_and_body_is_the_same_job(jobs: Jobs) -> None:
    first = await jobs.submit(spec("job_1"), b"{}", idempotency=("key", "hash"))
    again = await jobs.submit(spec("job_2"), b"{}", idempotency=("key", "hash"))
    assert (again.id, again.created, again.position) == (first.id, False, 0)
    assert await jobs.get("job_2") is None
    with pytest.raises(IdempotencyConflict):
        await jobs.submit(spec("job_3"), b"{ }", idempotency=("key", "other hash"))
    # Keys belong to their tenant; one that looks like the end of another tenant's name is not taken for it.
    assert (await jobs.submit(spec("job_4", tenant="B"), b"{ }", idempotency=("key", "other hash"))).created
    assert (await jobs.submit(spec("job_5", tenant="A:k"), b"{ }", idempotency=("ey", "x"))).created


async def test_the_same_key_finds_the_job_after_its_end(jobs: Jobs, fleet_client: FleetClient) -> None:
    await jobs.submit(spec("job_1"), b"{}", idempotency=("key", "hash"))
    await run_next(fleet_client)
    await jobs.finish("job_1", BOOT, 1, done(), b"")
    again = await jobs.submit(spec("job_2"), b"{}", idempotency=("key", "hash"))
    assert (again.id, again.created, again.position) == ("job_1", False, None)


async def test_the_same_id_is_the_same_job_in_whatever_state(jobs: Jobs, fleet_client: FleetClient) -> None:
    assert (await submit(jobs, "job_1")).created
    assert not (await submit(jobs, "job_1")).created
    await run_next(fleet_client)
    assert not (await submit(jobs, "job_1")).created
    await jobs.finish("job_1", BOOT, 1, done(), b"")
    assert not (await submit(jobs, "job_1")).created
    assert (await read(jobs, "job_1")).state is JobState.COMPLETED
    with pytest.raises(IdempotencyConflict):
        await submit(jobs, "job_1", tenant="B")


async def test_a_band_that_does_not_exist_is_refused(jobs: Jobs) -> None:
    with pytest.raises(ValueError, match="band 9"):
        await submit(jobs, "job_1", band=9)


async def test_lists_are_of_one_tenant_newest_first(jobs: Jobs, fleet_client: FleetClient) -> None:
    for id_ in ids(5, "job_"):
        await submit(jobs, id_)
    await submit(jobs, "job_other", tenant="B")
    await submit(jobs, "job_batch", kind="batch")
    await run_next(fleet_client)

    async def listed(**how: object) -> list[str]:
        return [job.spec.id for job in await jobs.list("A", **how)]  # type: ignore[arg-type]

    assert (await listed(limit=2))[0] == "job_batch"
    assert await listed(after="job_0003", limit=2) == ["job_0002", "job_0001"]
    assert await listed(after="job_0000") == []
    assert await listed(after="job_other") == []
    assert await listed(states=frozenset({JobState.IN_PROGRESS})) == ["job_0000"]
    assert len(await listed(kinds=frozenset({"job"}))) == 5


async def test_a_queued_job_is_cancelled_at_once(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    assert await jobs.cancel("job_1", "B") == "unknown"
    assert await jobs.cancel("job_none", "A") == "unknown"
    assert await jobs.cancel("job_1", "A") == "cancelled"
    assert await jobs.cancel("job_1", "A") == "ended"
    job = await read(jobs, "job_1")
    assert (job.state, job.error_code) == (JobState.CANCELLED, "job_cancelled")
    assert [chunk.end for chunk in await jobs.events("job_1")] == [True]
    assert names(await claim_jobs(fleet_client)) == []


async def test_the_worker_of_a_running_job_is_told_to_cancel_it(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    before = await fleet_client.call("XLEN", fleet_client.keys.bell)
    assert await jobs.cancel("job_1", "A") == "cancelling"
    hints = await fleet_client.call("XRANGE", fleet_client.keys.bell, "-", "+")
    assert [fields[b"r"] for _, fields in hints][before:] == [b"cancel"]
    assert (await read(jobs, "job_1")).cancel
    assert await jobs.renew(BOOT, [("job_1", 1)]) == {"job_1": "cancel"}
    assert await jobs.finish("job_1", BOOT, 1, JobOutcome(state=JobState.CANCELLED, http_status=499), b"")
    assert (await read(jobs, "job_1")).state is JobState.CANCELLED


async def test_a_follower_that_waits_is_told_at_once(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    following = asyncio.create_task(jobs.events("job_1", block_ms=2000))
    await run_next(fleet_client)
    await jobs.chunk("job_1", BOOT, 1, 1, b"one", tokens=1)
    assert await following == [Chunk("1-1", 1, 1, b"one")]
    assert await jobs.events("job_1", "1-1", block_ms=50) == []
    await jobs.close()


async def test_more_followers_than_connections_for_them_all_get_the_output(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    await submit(jobs, "job_1")
    await run_next(fleet_client)

    async def follow() -> bytes:
        last, out = "0-0", b""
        while True:
            for chunk in await jobs.events("job_1", last, block_ms=2000):
                if chunk.end:
                    return out
                last, out = chunk.id, out + chunk.data

    followers = [asyncio.create_task(follow()) for _ in range(80)]
    await asyncio.sleep(0)  # they have begun
    for seq, data in enumerate((b"one", b"two"), 1):
        await jobs.chunk("job_1", BOOT, 1, seq, data, tokens=seq)
    await jobs.finish("job_1", BOOT, 1, done(), b"")
    assert set(await asyncio.gather(*followers)) == {b"onetwo"}
    await jobs.close()


async def test_what_is_no_id_of_a_chunk_is_refused(jobs: Jobs) -> None:
    for wrong in ("", "1", "$", "1-2-3", "a-b", "+"):
        with pytest.raises(ValueError, match="no id"):
            await jobs.events("job_1", wrong)


async def test_every_event_that_was_asked_for_goes_to_the_outbox(jobs: Jobs, fleet_client: FleetClient) -> None:
    asked = WebhookSpec(url="https://sink.example/", events=("in_progress", "completed"))
    await submit(jobs, "job_1", webhook=asked)
    await submit(jobs, "job_2", webhook=asked)
    await submit(jobs, "job_3")
    await run_next(fleet_client)
    await jobs.requeue("job_1", BOOT, 1, spent=True, reason="the engine died")
    await run_next(fleet_client)
    await jobs.finish("job_1", BOOT, 2, done(), b"")
    await jobs.cancel("job_2", "A")

    async def told(id_: str) -> list[bytes]:
        events = await fleet_client.call("LRANGE", fleet_client.keys.outbox(id_), 0, -1)
        return [event.split()[0] for event in events]

    assert [await told(f"job_{n}") for n in (1, 2, 3)] == [[b"in_progress", b"completed"], [], []]
    assert await fleet_client.call("ZRANGE", fleet_client.keys.hooks, 0, -1) == [b"job_1"]
