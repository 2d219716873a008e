"""Start deadlines, retention, failed loads: what ends jobs from the outside, and what is left then."""

from __future__ import annotations

import pytest

from fleet import FleetClient, Jobs, Leader, LostLeadership, Publisher, Queue, Registry
from fleet.jobs.ends import forget
from fleet.jobs.places import job_places
from fleet.keys import idempotency_digest
from fleet.leaks import find_leaks
from rewarm.jobs import JobState, WebhookSpec
from rewarm.messages import Failure
from rewarm.states import FailureReason, ReplicaState
from tests.fleet.helpers import advance, claim, enqueue, ids
from tests.fleet.job_helpers import BOOT, claim_jobs, done, kept_bytes, names, read, run_next, spec, submit

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

DAY_S = 86_400


@pytest.fixture
def jobs(fleet_client: FleetClient) -> Jobs:
    return Jobs(fleet_client)


async def test_a_job_that_was_not_started_in_time_expires(jobs: Jobs, fleet_client: FleetClient) -> None:
    now = await fleet_client.time_ms()
    for id_ in ("job_late", "job_started"):
        await submit(jobs, id_, start_deadline_ms=now + 60_000, priority="low" if id_ == "job_late" else "high")
    await submit(jobs, "job_patient")
    assert names(await claim_jobs(fleet_client)) == ["job_started"]
    await advance(fleet_client, 59)
    assert await jobs.expire() == 0
    await advance(fleet_client, 2)
    assert await jobs.expire() == 1
    job = await read(jobs, "job_late")
    assert (job.state, job.error_code) == (JobState.EXPIRED, "job_expired")
    assert [(await read(jobs, id_)).state for id_ in ("job_started", "job_patient")] == ["in_progress", "queued"]
    # One that had started may be started again whenever it is.
    await jobs.requeue("job_started", BOOT, 1, spent=True, reason="the engine died")
    assert await jobs.expire() == 0


async def test_the_start_deadline_of_a_job_that_never_really_started_still_holds(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    await submit(jobs, "job_1", start_deadline_ms=await fleet_client.time_ms() + 60_000)
    await run_next(fleet_client)
    await jobs.requeue("job_1", BOOT, 1, spent=False, reason="the gate refused it")
    await advance(fleet_client, 61)
    assert await jobs.expire() == 1


async def test_a_job_that_was_started_between_the_look_and_the_end_does_not_expire(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    now = await fleet_client.time_ms()
    await submit(jobs, "job_1", start_deadline_ms=now + 60_000)
    await submit(jobs, "job_2", start_deadline_ms=now - 1)
    await claim_jobs(fleet_client, 2)
    await jobs.requeue("job_2", BOOT, 1, spent=True, reason="the engine died")
    places = await job_places(fleet_client, ["job_1", "job_2"])
    for id_, place in places.items():
        keys = place.keys(fleet_client.keys)
        assert await fleet_client.scripts.run("job_expire", keys, [id_, "job_expired", ""]) == 0
    await submit(jobs, "job_3", start_deadline_ms=now + 60_000)
    keys = (await job_places(fleet_client, ["job_3"]))["job_3"].keys(fleet_client.keys)
    assert await fleet_client.scripts.run("job_expire", keys, ["job_3", "job_expired", ""]) == 0


async def test_a_retention_shorter_than_that_of_output_ends_both(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1", retention_s=60)
    await run_next(fleet_client)
    await jobs.chunk("job_1", BOOT, 1, 1, b"output", tokens=1)
    await jobs.finish("job_1", BOOT, 1, done(), b"result")
    await advance(fleet_client, 61)
    assert await jobs.expire() == 1
    assert await kept_bytes(fleet_client) == 0
    assert await find_leaks(fleet_client) == []


async def test_a_result_can_be_read_for_seven_days_after_the_end_and_then_nothing_is_left(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    hook = WebhookSpec(url="https://sink.example/")
    for id_, end in (
        ("job_done", "finish"),
        ("job_failed", "fail"),
        ("job_cancelled", "cancel"),
        ("job_late", "expire"),
    ):
        deadline = await fleet_client.time_ms() - 1 if end == "expire" else None
        await jobs.submit(
            spec(id_, max_attempts=1, webhook=hook, start_deadline_ms=deadline), b"{}", idempotency=(id_, "hash")
        )
        match end:
            case "finish":
                await run_next(fleet_client)
                await jobs.chunk(id_, BOOT, 1, 1, b"some output", tokens=1)
                await jobs.finish(id_, BOOT, 1, done(), b"the result")
            case "fail":
                await run_next(fleet_client)
                await jobs.chunk(id_, BOOT, 1, 1, b"some output", tokens=1)
                await jobs.requeue(id_, BOOT, 1, spent=True, reason="x")
            case "cancel":
                await jobs.cancel(id_, "A")
            case "expire":
                assert await jobs.expire() == 1
    prefix = fleet_client.keys.prefix
    everything = await fleet_client.call("KEYS", f"{prefix}*job_*")
    assert {name for name in everything if await fleet_client.call("PTTL", name) == -1} == set()
    kept = await kept_bytes(fleet_client)

    await advance(fleet_client, 1801)
    assert await jobs.expire() == 2  # the output of the two that had some
    assert await jobs.events("job_done") == []
    assert await kept_bytes(fleet_client) == kept - 2 * len(b"some output")

    await advance(fleet_client, 7 * DAY_S - 1900)
    assert await jobs.expire() == 0
    assert await jobs.result("job_done") == b"the result"

    await advance(fleet_client, 100)
    assert await jobs.expire() == 4
    assert await jobs.get_many(["job_done", "job_failed", "job_cancelled", "job_late"]) == [None] * 4
    assert await fleet_client.call("KEYS", f"{prefix}*job*") == []
    assert await fleet_client.call("KEYS", f"{prefix}*idem*") == []
    for name in (fleet_client.keys.store, fleet_client.keys.ended, fleet_client.keys.due, fleet_client.keys.hooks):
        assert not await fleet_client.call("EXISTS", name), name
    assert await jobs.list("A") == []


async def test_what_a_sweeper_took_for_over_and_is_not_stays(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await jobs.cancel("job_1", "A")
    entries = [entry.decode() for entry in await fleet_client.call("ZRANGE", fleet_client.keys.ended, 0, -1)]
    assert len(entries) == 1
    assert await forget(fleet_client, entries) == 0
    assert (await read(jobs, "job_1")).state is JobState.CANCELLED


async def test_each_job_has_a_retention_of_its_own(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_short", retention_s=3600)
    await submit(jobs, "job_long")
    for _ in range(2):
        lease = await run_next(fleet_client)
        await jobs.finish(lease.spec.id, BOOT, 1, done(), b"x")
    await advance(fleet_client, 3601)
    assert await jobs.expire() == 1
    assert [job.spec.id for job in await jobs.list("A")] == ["job_long"]


async def test_what_redis_forgot_by_itself_is_still_given_back(jobs: Jobs, fleet_client: FleetClient) -> None:
    """No leader for more than eight days: keys go by their TTL, and the counts are put right afterwards."""
    await jobs.submit(spec("job_1"), b"{}", idempotency=("key", "hash"))
    await run_next(fleet_client)
    await jobs.chunk("job_1", BOOT, 1, 1, b"output", tokens=1)
    await jobs.finish("job_1", BOOT, 1, done(), b"result")
    keys = fleet_client.keys
    for name in (keys.ticket("job_1"), keys.spec("job_1"), keys.result("job_1"), keys.out("job_1")):
        assert 0 < await fleet_client.call("PTTL", name) <= 8 * DAY_S * 1000
        await fleet_client.call("DEL", name)
    await fleet_client.call("DEL", keys.idempotency(idempotency_digest("A", "key")))
    await advance(fleet_client, 9 * DAY_S)
    assert await jobs.expire() == 2
    assert await kept_bytes(fleet_client) == 0
    assert await find_leaks(fleet_client) == []


async def test_an_ended_job_can_be_deleted(jobs: Jobs, fleet_client: FleetClient) -> None:
    await jobs.submit(spec("job_1"), b"{}", idempotency=("key", "hash"))
    await run_next(fleet_client)
    assert await jobs.delete("job_1", "A") == "active"
    await jobs.chunk("job_1", BOOT, 1, 1, b"output", tokens=1)
    await jobs.finish("job_1", BOOT, 1, done(), b"result")
    assert await jobs.delete("job_1", "B") == "unknown"
    assert await jobs.delete("job_1", "A") == "deleted"
    assert await jobs.delete("job_1", "A") == "unknown"
    assert await jobs.get("job_1") is None
    assert await kept_bytes(fleet_client) == 0
    assert (await jobs.submit(spec("job_2"), b"{}", idempotency=("key", "hash"))).created


async def test_one_whose_output_is_forgotten_already_can_be_deleted(jobs: Jobs, fleet_client: FleetClient) -> None:
    await submit(jobs, "job_1")
    await run_next(fleet_client)
    await jobs.chunk("job_1", BOOT, 1, 1, b"output", tokens=1)
    await jobs.finish("job_1", BOOT, 1, done(), b"result")
    await advance(fleet_client, 1801)
    assert await jobs.expire() == 1
    assert await jobs.delete("job_1", "A") == "deleted"
    assert await kept_bytes(fleet_client) == 0
    assert await fleet_client.call("EXISTS", fleet_client.keys.ended) == 0


# --- a model that does not load --------------------------------------------------------------------------------------


def failure(number: int) -> Failure:
    return Failure(
        reason=FailureReason.OUT_OF_MEMORY, message="no room", phase=ReplicaState.RESTORING, at_ms=1000 + number
    )


async def leading(client: FleetClient) -> tuple[str, int]:
    leader = Leader(client, "controller-1")
    term = await leader.campaign()
    assert term is not None
    return leader.owner, term


async def test_a_failed_load_spends_no_attempt_and_the_last_one_it_may_wait_through_ends_a_job(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    queue, (owner, term) = Queue(fleet_client), await leading(fleet_client)
    await submit(jobs, "job_1")
    await submit(jobs, "job_2", max_loads=1)
    await enqueue(queue, "client")

    async def load_fails(number: int) -> int:
        why = ("model_load_failed", "it did not load", failure(number))
        return await queue.fail_all("m", *why, owner, term, jobs="count")

    assert await load_fails(1) == 1  # the client; jobs are not told, they are asked about
    assert (await read(jobs, "job_2")).state is JobState.FAILED
    assert await load_fails(1) == 0  # the same failure, reported again
    assert (await read(jobs, "job_1")).loads == 1
    await load_fails(2)
    job = await read(jobs, "job_1")
    assert (job.state, job.loads, job.attempt, job.spent) == (JobState.QUEUED, 2, 0, 0)
    await submit(jobs, "job_3")
    await load_fails(3)
    job = await read(jobs, "job_1")
    assert (job.state, job.error_code, job.error_message) == (JobState.FAILED, "model_load_failed", "it did not load")
    assert (await read(jobs, "job_3")).loads == 1


async def test_a_failed_load_is_counted_for_each_of_many_jobs_once(jobs: Jobs, fleet_client: FleetClient) -> None:
    queue, (owner, term) = Queue(fleet_client), await leading(fleet_client)
    for number, id_ in enumerate(ids(700, "job_")):
        await submit(jobs, id_, max_loads=1 + number % 2)
    await queue.fail_all("m", "model_load_failed", "", failure(1), owner, term, jobs="count")
    found = [await read(jobs, id_) for id_ in ids(700, "job_")]
    assert {job.state for job in found[::2]} == {JobState.FAILED}
    assert {(job.state, job.loads) for job in found[1::2]} == {(JobState.QUEUED, 1)}


async def test_a_model_that_is_given_up_ends_all_jobs_that_wait_for_it(jobs: Jobs, fleet_client: FleetClient) -> None:
    queue, (owner, term) = Queue(fleet_client), await leading(fleet_client)
    for id_ in ids(250, "job_"):
        await submit(jobs, id_)
    await submit(jobs, "job_other", model="healthy")
    await run_next(fleet_client)
    await queue.fail_all("m", "model_load_failed", "", None, owner, term)  # "keep"
    assert (await queue.waiting(["m"]))["m"].jobs == 249
    await queue.fail_all("m", "model_removed", "it is gone", None, owner, term, jobs="fail")
    waiting = await queue.waiting(["m", "healthy"])
    assert (waiting["m"].jobs, waiting["healthy"].jobs) == (0, 1)
    assert (await read(jobs, "job_0249")).error_code == "model_removed"
    assert (await read(jobs, "job_0000")).state is JobState.IN_PROGRESS


async def test_the_queue_of_a_removed_model_is_known_until_nobody_is_in_it(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    """`demand` names it: so a leader finds what waits there, whenever it came."""
    leader = Leader(fleet_client, "controller-1")
    await leader.campaign()
    queue, registry = Queue(fleet_client), Registry(fleet_client)

    async def known() -> bool:
        return "m" in (await registry.snapshot()).demand_ms

    await submit(jobs, "job_1")
    await submit(jobs, "job_2")
    lease = await run_next(fleet_client)
    await Publisher(fleet_client, leader).catalogue([])
    assert await known(), "the leader may end here"
    await queue.fail_all("m", "model_removed", "it is gone", None, *leader.claim(), jobs="fail")
    assert not await known()
    assert await jobs.requeue("job_1", BOOT, lease.attempt, spent=False, reason="the replica drains")
    assert await known()
    await queue.fail_all("m", "model_removed", "it is gone", None, *leader.claim(), jobs="fail")
    assert not await known()
    assert (await read(jobs, "job_1")).error_code == "model_removed"


async def test_a_ticket_that_comes_back_makes_its_queue_known(fleet_client: FleetClient) -> None:
    leader = Leader(fleet_client, "controller-1")
    await leader.campaign()
    queue = Queue(fleet_client)
    await enqueue(queue, "t1")
    (grant,) = (await claim(queue)).grants
    await queue.fail_all("m", "model_removed", "it is gone", None, *leader.claim(), jobs="fail")
    assert await queue.decline("t1", grant.grant)
    assert "m" in (await Registry(fleet_client).snapshot()).demand_ms


async def test_a_queue_is_not_forgotten_while_somebody_is_in_it_nor_by_who_no_longer_leads(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    owner, term = await leading(fleet_client)
    keys = fleet_client.keys
    names_ = [keys.leader, keys.demand, keys.since("m"), keys.jobs_since("m")]
    await submit(jobs, "job_1")
    assert await fleet_client.scripts.run("forget_queue", names_, [owner, term, "m"]) == 0
    await jobs.cancel("job_1", "A")
    await enqueue(Queue(fleet_client), "t1")
    assert await fleet_client.scripts.run("forget_queue", names_, [owner, term, "m"]) == 0
    assert await fleet_client.scripts.run("forget_queue", names_, [owner, term - 1, "m"]) == -1
    assert await fleet_client.call("HEXISTS", keys.demand, "m")


async def test_only_the_leader_in_its_term_ends_jobs(jobs: Jobs, fleet_client: FleetClient) -> None:
    owner, term = await leading(fleet_client)
    queue = Queue(fleet_client)
    await submit(jobs, "job_1", max_loads=1)
    for who, when in ((owner, term - 1), ("controller-2", term)):
        for how in ("count", "fail"):
            with pytest.raises(LostLeadership):
                await queue.fail_all("m", "model_load_failed", "", None, who, when, jobs=how)
    job = await read(jobs, "job_1")
    assert (job.state, job.loads) == (JobState.QUEUED, 0)


async def test_leadership_lost_between_the_look_and_the_end_ends_nothing(jobs: Jobs, fleet_client: FleetClient) -> None:
    owner, term = await leading(fleet_client)
    await submit(jobs, "job_1")
    place = (await job_places(fleet_client, ["job_1"])).get("job_1")
    assert place is not None
    keys = [*place.keys(fleet_client.keys), fleet_client.keys.leader]
    names_ = [fleet_client.keys.leader, fleet_client.keys.lease, fleet_client.keys.ticket("job_1")]
    for who, when in ((owner, term - 1), ("controller-2", term)):
        assert await fleet_client.scripts.run("job_fail", keys, ["job_1", who, when, "code", ""]) == -1
        assert await fleet_client.scripts.run("job_loads", names_, [who, when, "mark", "job_1"]) == -1
    assert (await read(jobs, "job_1")).state is JobState.QUEUED


async def test_a_job_that_was_started_between_the_look_and_the_end_does_not_fail_with_its_model(
    jobs: Jobs, fleet_client: FleetClient
) -> None:
    owner, term = await leading(fleet_client)
    await submit(jobs, "job_1")
    keys = (await job_places(fleet_client, ["job_1"]))["job_1"].keys(fleet_client.keys)
    await run_next(fleet_client)
    arguments: list[str | int] = ["job_1", owner, term, "model_load_failed", ""]
    assert await fleet_client.scripts.run("job_fail", [*keys, fleet_client.keys.leader], arguments) == 0
    assert (await read(jobs, "job_1")).state is JobState.IN_PROGRESS
