"""Redis away, leases lost, writes that hang: running jobs go on, and nothing is written that is no longer theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fleet import Jobs, Renewal
from rewarm.errors import QueueUnavailable
from rewarm.jobs import JobOutcome, JobState
from rewarm.states import ReplicaState
from tests.worker.conftest import RunRig, until
from tests.worker.jobs.conftest import JobRig
from worker.jobs.output import Output

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]
J = JobState


class FaultyStore:
    """The worker's own way to Redis, which can be cut; the test's way stays open."""

    def __init__(self, real: Jobs) -> None:
        self._real = real
        self.limits = real.limits
        self.away = False
        self.deaf = False  # renewals only
        self.hangs = asyncio.Event()  # set: writes of output are let through
        self.hangs.set()
        self.refused = 0
        self.renewed = 0

    def _check(self) -> None:
        if self.away:
            self.refused += 1
            raise QueueUnavailable("cut by the test")

    async def body(self, id_: str) -> bytes | None:
        self._check()
        return await self._real.body(id_)

    async def renew(self, worker: str, leases: Sequence[tuple[str, int]]) -> dict[str, Renewal]:
        self._check()
        if self.deaf:
            raise QueueUnavailable("cut by the test")
        self.renewed += 1
        return await self._real.renew(worker, leases)

    async def chunk(self, id_: str, worker: str, attempt: int, seq: int, data: bytes, *, tokens: int) -> bool:
        self._check()
        await self.hangs.wait()
        return await self._real.chunk(id_, worker, attempt, seq, data, tokens=tokens)

    async def finish(self, id_: str, worker: str, attempt: int, outcome: JobOutcome, result: bytes) -> bool:
        self._check()
        return await self._real.finish(id_, worker, attempt, outcome, result)

    async def requeue(self, id_: str, worker: str, attempt: int, *, spent: bool, reason: str) -> bool:
        self._check()
        return await self._real.requeue(id_, worker, attempt, spent=spent, reason=reason)


def cut_into(r: JobRig) -> FaultyStore:
    runner: Any = r.rig.agent._jobs
    runner._store = FaultyStore(runner._store)
    store: FaultyStore = runner._store
    return store


def text_in(events: list[dict[str, Any]]) -> str:
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


async def expire_leases(r: JobRig) -> None:
    """As if their worker had been silent for longer than a lease lasts; others go on saying that they live."""
    for _ in range(16):  # in steps: after a leap nothing would expire, as after an outage of Redis
        r.rig.client.scripts.clock_offset_ms += 1_000
        await r.rig.queue.reap()


@pytest.mark.asyncio
async def test_a_job_goes_on_while_redis_is_away_and_everything_is_written_once_it_is_back(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.03") as r:
        store = cut_into(r)
        await r.submit("j1", fake={"tokens": 50})
        await until(lambda: r.chunks("j1"), "it generates")
        store.away = True
        written = len(await r.chunks("j1"))
        await until(lambda: r.seen("j1") == ["start", "end"], "the engine ends it meanwhile")
        await until(lambda: store.refused >= 3, "it is tried again and again")
        assert len(await r.chunks("j1")) == written
        assert (await r.job("j1")).state is J.IN_PROGRESS
        store.away = False
        job = await r.ended("j1")
        assert (job.state, job.attempt) == (J.COMPLETED, 1)
        assert [c.seq for c in await r.chunks("j1")] == list(range(1, len(await r.chunks("j1")) + 1))
        assert text_in(await r.output("j1")) == (await r.answer("j1"))["choices"][0]["message"]["content"]


@pytest.mark.asyncio
async def test_a_lost_lease_aborts_the_generation_and_its_writes_are_fenced_out(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.03") as r:
        store = cut_into(r)
        await r.submit("j1", fake={"tokens": 100})
        await until(lambda: r.chunks("j1"), "it generates")
        store.deaf = True
        await expire_leases(r)
        await until(lambda: r.seen("j1")[:2] == ["start", "abort"] or r.seen("j1").count("start") == 2, "given up")
        store.deaf = False
        r.rig.agent._jobs.look()
        job = await r.ended("j1", 30)
        assert (job.state, job.attempt) == (J.COMPLETED, 2)
        assert sorted(r.seen("j1")) == ["abort", "end", "start", "start"]
        chunks = await r.chunks("j1")
        attempts = [chunk.attempt for chunk in chunks]
        assert attempts == sorted(attempts)
        second = b"".join(chunk.data for chunk in chunks if chunk.attempt == 2)
        assert second.count(b"word99") == second.count(b"You ") == 1


@pytest.mark.asyncio
async def test_a_loser_learns_at_its_next_renewal_that_nothing_is_its_own(job_rig: RunRig) -> None:
    """Another worker has the job by then: this one's replica takes no new one."""
    async with job_rig("--token-delay", "0.03") as r:
        store = cut_into(r)
        await r.submit("j1", fake={"tokens": 1000})
        await until(lambda: r.chunks("j1"), "it generates")
        store.deaf = True
        store.hangs.clear()  # so that it does not learn of its loss by writing
        await r.rig.want("m-1", ReplicaState.STOPPED)  # draining: claims nothing
        await r.rig.reaches("m-1", ReplicaState.DRAINING)
        await expire_leases(r)
        assert (await r.job("j1")).state is J.QUEUED
        assert r.seen("j1") == ["start"], "nobody has told it yet"
        store.deaf = False
        r.rig.agent._jobs.look()
        await until(lambda: r.seen("j1") == ["start", "abort"], "aborted by the renewal", 5)
        store.hangs.set()
        await until(lambda: r.rig.agent._jobs.running == 0, "let go of")
        job = await r.job("j1")
        assert (job.state, job.spent) == (J.QUEUED, 1)


@pytest.mark.asyncio
async def test_renewals_wait_for_no_write_of_output(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.01", slots=16) as r:
        store = cut_into(r)
        store.hangs.clear()
        for n in range(12):
            await r.submit(f"j{n}", fake={"tokens": 50})
        await until(lambda: all(r.seen(f"j{n}") == ["start", "end"] for n in range(12)), "all are generated")
        before = store.renewed
        r.rig.agent._jobs.look()
        await until(lambda: store.renewed > before, "renewed although twelve writes hang", 2)
        store.hangs.set()
        for n in range(12):
            assert (await r.ended(f"j{n}")).state is J.COMPLETED


@pytest.mark.asyncio
async def test_leases_are_renewed_for_as_long_as_a_job_runs(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.1") as r:
        store = cut_into(r)
        await r.submit("j1", fake={"tokens": 60})
        assert (await r.ended("j1")).attempt == 1
        assert store.renewed >= 1


@pytest.mark.asyncio
async def test_cancelled_while_its_writes_hang_it_still_stops_at_once(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.05") as r:
        store = cut_into(r)
        store.hangs.clear()
        await r.submit("j1", fake={"tokens": 1000})
        await until(lambda: r.seen("j1") == ["start"], "it generates")
        assert await r.jobs.cancel("j1", "t") == "cancelling"
        await until(lambda: r.seen("j1") == ["start", "abort"], "the engine stops", 3)
        assert (await r.ended("j1")).state is J.CANCELLED


@pytest.mark.asyncio
async def test_a_full_buffer_makes_the_reader_wait() -> None:
    written: list[bytes] = []
    gate = asyncio.Event()

    async def write(seq: int, data: bytes, tokens: int) -> bool:
        await gate.wait()
        written.append(data)
        return True

    output = Output(write)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(output.write_out())
        piece = b"x" * 2**19

        async def read() -> int:
            for n in range(8):
                await output.put(piece, n)
            output.close()
            return 8

        reading = tasks.create_task(read())
        done, _ = await asyncio.wait((reading,), timeout=0.3)
        assert not done, "at most the chunk in the writer's hand and a full buffer"
        gate.set()
    assert b"".join(written) == piece * 8
