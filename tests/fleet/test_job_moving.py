"""A job goes down its fallback chain: from one model's queue to another's, in one step."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from fleet import FleetClient, InChain, Jobs, Leader, LostLeadership, Publisher, Queue, Reaped
from fleet.jobs.ends import return_lost
from fleet.jobs.moving import move
from rewarm.fallback import Chain, Outlook, Switch, decide
from rewarm.fallback import Failed as ModelFailed
from rewarm.jobs import JobState
from rewarm.messages import CatalogueEntry, ModelPolicy
from tests.fleet.helpers import advance
from tests.fleet.helpers import spec as replica_spec
from tests.fleet.job_helpers import BOOT, claim_jobs, done, names, read, run_next, submit

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


Term = tuple[str, int]


@pytest.fixture
def jobs(fleet_client: FleetClient) -> Jobs:
    return Jobs(fleet_client)


@pytest_asyncio.fixture
async def leader(fleet_client: FleetClient) -> Term:
    one = Leader(fleet_client, "controller-1")
    await one.campaign()
    return one.claim()


async def in_chain(jobs: Jobs, model: str = "m") -> InChain:
    (found,) = await jobs.in_chain(model, 0, 10)
    assert found is not None
    return found


def after(chain: Chain) -> Chain:
    step = decide(chain, ModelFailed("model_load_failed"), 1.0, lambda link: Outlook(0.0))
    assert isinstance(step, Switch)
    return step.chain


async def claim_of(fleet_client: FleetClient, model: str, request: str):  # type: ignore[no-untyped-def]
    return await Queue(fleet_client).claim(
        model, "worker", "replica", "unix:/g", [f"g-{request}"], request_id=request, max_jobs=1, boot=BOOT
    )


async def test_a_job_that_waits_goes_on_to_the_next_model(fleet_client: FleetClient, jobs: Jobs, leader: Term) -> None:
    await submit(jobs, "j", fallback=("b", "c"))
    found = await in_chain(jobs)
    assert found.chain.current == "m" and found.chain.links == ("b", "c")
    assert await jobs.move(found, after(found.chain), "model_load_failed", *leader)
    job = await read(jobs, "j")
    assert (job.state, job.model, job.spec.model, job.fallback) == (JobState.QUEUED, "b", "m", "model_load_failed")
    assert job.position == 0
    assert names(await claim_jobs(fleet_client)) == []
    (lease,) = (await claim_of(fleet_client, "b", "r1")).jobs
    assert (lease.spec.id, lease.model, lease.chain) == ("j", "b", "1")
    assert await jobs.finish("j", BOOT, lease.attempt, done(), b"{}")
    assert (await read(jobs, "j")).model == "b"


async def test_it_is_moved_once_from_where_it_was_seen(jobs: Jobs, leader: Term) -> None:
    await submit(jobs, "j", fallback=("b", "c"))
    seen = await in_chain(jobs)
    moves = [jobs.move(seen, after(seen.chain), "x", *leader) for _ in range(2)]
    assert sorted(await asyncio.gather(*moves)) == [False, True]
    there = await in_chain(jobs, "b")
    assert there.chain.current == "b" and there.chain.left == ("c",)
    assert await jobs.move(there, after(there.chain), "x", *leader)
    assert (await in_chain(jobs, "c")).chain.left == ()


async def test_one_that_came_back_is_not_sent_away_by_who_saw_it_before(jobs: Jobs, leader: Term) -> None:
    await submit(jobs, "j", fallback=("b",))
    seen = await in_chain(jobs)
    assert await jobs.move(seen, Chain("m", ("b",), at=1, late=True), "cut_over", *leader)
    home = Chain("m", ("b",), at=1, late=True, back=True)
    assert await jobs.move(await in_chain(jobs, "b"), home, "model_load_failed", *leader)
    assert not await jobs.move(seen, after(seen.chain), "x", *leader)
    there = await in_chain(jobs)
    assert there.chain.back and there.chain.current == "m" and (await read(jobs, "j")).fallback == ""


async def test_who_looked_before_it_was_moved_ends_it_nowhere(
    fleet_client: FleetClient, jobs: Jobs, leader: Term
) -> None:
    await submit(jobs, "j", fallback=("b",))
    seen = await in_chain(jobs)
    await jobs.move(seen, after(seen.chain), "x", *leader)
    stale = seen.place.keys(fleet_client.keys)
    run = fleet_client.scripts.run
    assert await run("job_cancel", stale, ["j", "A", "code", ""]) == b"moved"
    assert await run("job_fail", [*stale, fleet_client.keys.leader], ["j", *leader, "code", ""]) == 0
    assert (await read(jobs, "j")).state is JobState.QUEUED


async def test_its_new_model_is_asked_for(fleet_client: FleetClient, jobs: Jobs, leader: Term) -> None:
    await submit(jobs, "j", fallback=("b",))
    seen = await in_chain(jobs)
    await jobs.move(seen, after(seen.chain), "x", *leader)
    assert await fleet_client.call("HGET", fleet_client.keys.demand, "b")


async def test_only_the_leader_moves_what_waits(jobs: Jobs, leader: Term) -> None:
    await submit(jobs, "j", fallback=("b",))
    seen = await in_chain(jobs)
    owner, term = leader
    with pytest.raises(LostLeadership):
        await jobs.move(seen, after(seen.chain), "x", owner, term - 1)
    assert (await read(jobs, "j")).model == "m"


async def test_one_that_runs_or_was_cancelled_stays(fleet_client: FleetClient, jobs: Jobs, leader: Term) -> None:
    await submit(jobs, "j", fallback=("b",))
    seen = await in_chain(jobs)
    await run_next(fleet_client)
    assert not await jobs.move(seen, after(seen.chain), "x", *leader)
    await jobs.cancel("j", "A")
    assert (await read(jobs, "j")).cancel


async def test_the_worker_that_holds_it_passes_it_on_with_new_attempts(fleet_client: FleetClient, jobs: Jobs) -> None:
    await submit(jobs, "j", fallback=("b",), max_attempts=1)
    lease = await run_next(fleet_client)
    assert not await jobs.pass_on(lease, "another", after(Chain("m", ("b",))), "worker_died")
    assert await jobs.pass_on(lease, BOOT, after(Chain("m", ("b",))), "worker_died")
    job = await read(jobs, "j")
    assert (job.state, job.model, job.spent, job.fallback) == (JobState.QUEUED, "b", 0, "worker_died")
    assert not await jobs.finish("j", BOOT, lease.attempt, done(), b"late")  # its lease is over
    assert await fleet_client.call("ZCARD", fleet_client.keys.lease) == 0


def entry(model: str) -> CatalogueEntry:
    return CatalogueEntry(model=model, aliases=(), spec=replica_spec(model), spec_hash="h", policy=ModelPolicy())


async def published(client: FleetClient, *models: str) -> None:
    leader = Leader(client, "controller-1")
    await leader.campaign()
    await Publisher(client, leader).catalogue([entry(model) for model in models])


async def lose(client: FleetClient) -> Reaped:
    """The worker is killed; its leases run out while everybody else lives."""
    await advance(client, 16)
    return await Queue(client).reap()


async def test_one_whose_last_attempt_was_lost_with_its_worker_goes_on_to_the_next_model_there_is(
    fleet_client: FleetClient, jobs: Jobs
) -> None:
    await published(fleet_client, "m", "c")
    await submit(jobs, "j", fallback=("removed", "c"), max_attempts=2)
    await run_next(fleet_client)
    assert (await lose(fleet_client)).jobs_returned == 1
    job = await read(jobs, "j")
    assert (job.model, job.spent) == ("m", 1), "it has another attempt there"
    lease = await run_next(fleet_client)
    assert (await lose(fleet_client)).jobs_returned == 1
    job = await read(jobs, "j")
    assert (job.state, job.model, job.spent, job.fallback) == (JobState.QUEUED, "c", 0, "job_attempts_exhausted")
    assert not await jobs.finish("j", BOOT, lease.attempt, done(), b"late")
    assert await fleet_client.call("ZCARD", fleet_client.keys.lease) == 0


async def test_at_the_end_of_its_chain_it_has_failed(fleet_client: FleetClient, jobs: Jobs) -> None:
    await published(fleet_client, "m")
    await submit(jobs, "j", fallback=("removed",), max_attempts=1)
    await run_next(fleet_client)
    assert (await lose(fleet_client)).jobs_ended == 1
    job = await read(jobs, "j")
    assert (job.state, job.error_code) == (JobState.FAILED, "job_attempts_exhausted")


async def test_one_that_was_to_be_cancelled_goes_nowhere(fleet_client: FleetClient, jobs: Jobs) -> None:
    await published(fleet_client, "m", "b")
    await submit(jobs, "j", fallback=("b",), max_attempts=1)
    await run_next(fleet_client)
    await jobs.cancel("j", "A")
    await lose(fleet_client)
    assert (await read(jobs, "j")).state is JobState.CANCELLED


async def test_nobody_takes_it_from_a_worker_that_holds_it_or_could_not_renew(
    fleet_client: FleetClient, jobs: Jobs
) -> None:
    await published(fleet_client, "m", "b")
    await submit(jobs, "j", fallback=("b",), max_attempts=1)
    await run_next(fleet_client)
    assert await return_lost(fleet_client, ["j"]) == (0, 0)
    fleet_client.scripts.clock_offset_ms += 16_000  # Redis was out of reach for all
    assert await return_lost(fleet_client, ["j"]) == (0, 0)
    assert (await read(jobs, "j")).state is JobState.IN_PROGRESS


async def test_one_with_attempts_left_stays_with_its_model(fleet_client: FleetClient, jobs: Jobs) -> None:
    """Somebody looked when it had none, and comes late."""
    await submit(jobs, "j", fallback=("b",), max_attempts=2)
    seen = await in_chain(jobs)
    await run_next(fleet_client)
    await advance(fleet_client, 16)
    assert not await move(fleet_client, seen, after(seen.chain), "x")
    assert (await read(jobs, "j")).model == "m"


async def test_its_second_run_goes_back_to_where_it_was_moved(fleet_client: FleetClient, jobs: Jobs) -> None:
    await submit(jobs, "j", fallback=("b",))
    lease = await run_next(fleet_client)
    assert await jobs.requeue("j", BOOT, lease.attempt, spent=False, reason="drain")
    lease = await run_next(fleet_client)
    assert await jobs.pass_on(lease, BOOT, after(Chain("m", ("b",))), "worker_died")
    (again,) = (await claim_of(fleet_client, "b", "r1")).jobs
    assert await jobs.requeue("j", BOOT, again.attempt, spent=True, reason="died")
    assert (await Queue(fleet_client).waiting(["m", "b"]))["b"].jobs == 1
    assert (await Queue(fleet_client).waiting(["m", "b"]))["m"].jobs == 0


async def test_a_moved_job_can_still_be_cancelled(fleet_client: FleetClient, jobs: Jobs, leader: Term) -> None:
    await submit(jobs, "j", fallback=("b",))
    seen = await in_chain(jobs)
    await jobs.move(seen, after(seen.chain), "x", *leader)
    assert await jobs.cancel("j", "A") == "cancelled"
    assert (await Queue(fleet_client).waiting(["b"]))["b"].jobs == 0


async def test_an_adapter_s_jobs_are_in_the_queue_of_its_base(
    fleet_client: FleetClient, jobs: Jobs, leader: Term
) -> None:
    """So they are after a fallback, by name: to the adapter, and from it to its base."""
    await submit(jobs, "j", fallback=("tuned", "b"), homes={"tuned": "b"})
    first = await in_chain(jobs)
    assert await jobs.move(first, after(first.chain), "model_load_failed", *leader)
    job = await read(jobs, "j")
    assert (job.model, job.fallback, job.position) == ("tuned", "model_load_failed", 0)
    second = await in_chain(jobs, "b")
    assert second.chain.current == "tuned"
    assert await jobs.move(second, after(second.chain), "adapter_load_failed", *leader)
    (lease,) = (await claim_of(fleet_client, "b", "r1")).jobs
    assert (lease.model, lease.chain) == ("b", "2")
    assert ((await read(jobs, "j")).model, (await read(jobs, "j")).fallback) == ("b", "adapter_load_failed")


async def test_an_adapter_s_job_begins_there(fleet_client: FleetClient, jobs: Jobs) -> None:
    await submit(jobs, "j", model="tuned", asked_model="tuned", homes={"tuned": "m"})
    job = await read(jobs, "j")
    assert (job.model, job.fallback, job.position) == ("tuned", "", 0)
    lease = await run_next(fleet_client)
    assert (lease.spec.model, lease.model, lease.chain) == ("tuned", "m", "")
