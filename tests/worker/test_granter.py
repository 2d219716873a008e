"""Free slots to waiting tickets, and what happens when Redis or the gate does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest

from fleet import JOB_BANDS, Claimed, Waiting
from rewarm.errors import QueueUnavailable
from rewarm.jobs import JobLease, JobSpec
from rewarm.messages import Grant
from tests.worker.conftest import until
from worker.gate import Ledger
from worker.granter import Granter
from worker.report import GateState

pytestmark = pytest.mark.timeout(30)


class FakeGate:
    """A real ledger behind the control calls."""

    def __init__(self, slots: int) -> None:
        self.ledger = Ledger(slots, 0.0)
        self.reservations = 0
        self.number = 0

    async def reserve(self, slots: int) -> tuple[tuple[str, ...], GateState]:
        self.reservations += 1
        self.number += slots
        return self.ledger.reserve([f"g{self.number - i}" for i in range(slots)], 0.0), self.ledger.state(0.0)

    async def release(self, grants: Sequence[str]) -> GateState:
        self.ledger.release(grants)
        return self.ledger.state(0.0)

    async def set_waiting_band(self, band: int | None) -> GateState:
        self.ledger.waiting_band = band
        return self.ledger.state(0.0)


class FakeReplica:
    id, model, endpoint, serving = "m-1", "m", "unix:/gate", True

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.yielding = False
        self.control = FakeGate(slots)
        self.told: list[str] = []  # jobs that it was told of

    def job_taken(self, lease: JobLease) -> None:
        self.told.append(lease.spec.id)

    @property
    def gate(self) -> GateState:
        return self.control.ledger.state(0.0)


class FakeQueue:
    def __init__(self) -> None:
        self.tickets: list[str] = []
        self.handed_off: list[str] = []  # jobs that wait as the tickets that they were
        self.jobs: list[str] = []
        self.failing = 0
        self.claims: list[str] = []  # request ids
        self.looks = 0
        self.taken_by_others = 0

    async def waiting(self, models: Sequence[str]) -> dict[str, Waiting]:
        self.looks += 1
        jobs = len(self.handed_off) + len(self.jobs)
        return {"m": Waiting(len(self.tickets), 0, self._highest(), jobs, 0, len(self.handed_off))}

    def _highest(self) -> int | None:
        return 1 if self.tickets or self.handed_off else JOB_BANDS["normal"] if self.jobs else None

    async def claim(
        self,
        model: str,
        worker: str,
        replica: str,
        endpoint: str,
        offers: Sequence[str],
        *,
        request_id: str,
        max_jobs: int,
        boot: str,
    ) -> Claimed:
        self.claims.append(request_id)
        left = list(offers)
        if self.failing:
            self.failing -= 1
            raise QueueUnavailable("no reply")
        del self.tickets[: self.taken_by_others]
        granted = [
            Grant(ticket=t, model=model, replica=replica, endpoint=endpoint, grant=offer, expires_ms=0)
            for t, offer in zip(self.tickets, left, strict=False)
        ]
        del self.tickets[: len(granted)]
        del left[: len(granted)]
        leased = []
        for queue, band, most in ((self.handed_off, 1, len(left)), (self.jobs, JOB_BANDS["normal"], max_jobs)):
            for _ in range(min(len(queue), len(left), most)):
                spec = JobSpec(id=queue.pop(0), tenant="t", model=model, asked_model=model, path="/", band=band)
                leased.append(
                    JobLease(spec=spec, attempt=1, grant=left.pop(0), replica=replica, deadline_ms=0, created_ms=0)
                )
        waiting = len(self.tickets) + len(self.handed_off)
        return Claimed(tuple(granted), waiting, self._highest(), tuple(leased), len(self.jobs))


class FakeRunner:
    """Takes leases and redeems their grants a little later, as runs do."""

    boot = "w-boot"

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.taken: dict[str, tuple[int, Callable[[], None]]] = {}
        self.refused: list[str] = []

    def take(self, lease: JobLease, place: object, on_generated: Callable[[], None]) -> None:
        self.taken[lease.spec.id] = lease.spec.band, on_generated
        asyncio.get_running_loop().call_soon(self._redeem, lease.grant)

    def _redeem(self, grant: str) -> None:
        if self.ledger.redeem(grant, 0.0) is not None:
            self.refused.append(grant)

    def generating(self, replica: str, bands: Iterable[int]) -> int:
        wanted = set(bands)
        return sum(band in wanted for band, _ in self.taken.values())

    def end(self, job: str) -> None:
        _, ended = self.taken.pop(job)
        self.ledger.finish(0.0)
        ended()


class Rig:
    def __init__(self, slots: int) -> None:
        self.replica, self.queue, self.may_claim = FakeReplica(slots), FakeQueue(), True
        self.jobs = FakeRunner(self.ledger)
        self.granter = Granter(self.replica, self.queue, "w", self, self.jobs)  # type: ignore[arg-type]

    @property
    def ledger(self) -> Ledger:
        return self.replica.control.ledger


@asynccontextmanager
async def running(slots: int = 2) -> AsyncIterator[Rig]:
    rig = Rig(slots)
    task = asyncio.create_task(rig.granter.run())
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.mark.asyncio
async def test_as_many_grants_as_slots_and_the_rest_waits_with_its_band_told() -> None:
    async with running() as rig:
        rig.queue.tickets = ["a", "b", "c"]
        rig.granter.poke()
        await until(lambda: rig.queue.tickets == ["c"] and rig.ledger.waiting_band == 1, "two granted")
        assert rig.ledger.reserved == 2
        rig.ledger.redeem("g2", 0.0)
        rig.ledger.finish(0.0)
        rig.granter.slot_freed()
        await until(lambda: rig.queue.tickets == [] and rig.ledger.waiting_band is None, "the third too")


@pytest.mark.asyncio
async def test_a_hot_model_frees_slots_without_a_round_trip_to_redis() -> None:
    async with running() as rig:
        rig.granter.poke()
        await until(lambda: rig.queue.looks == 1, "looked once")
        for _ in range(100):
            rig.granter.slot_freed()
            await asyncio.sleep(0)
        assert rig.queue.looks == 1
        assert rig.replica.control.reservations == 0


@pytest.mark.asyncio
async def test_slots_reserved_for_tickets_that_others_took_are_released() -> None:
    async with running() as rig:
        rig.queue.tickets, rig.queue.taken_by_others = ["a", "b"], 1
        rig.granter.poke()
        await until(lambda: rig.queue.claims and rig.ledger.reserved == 1, "one granted, one released")


@pytest.mark.asyncio
async def test_one_that_yields_takes_nothing_new_until_it_is_wanted_again() -> None:
    """Its newer requests queue: neither claims nor the hot path keep it in memory for ever."""
    async with running() as rig:
        rig.replica.yielding = True
        rig.queue.tickets = ["a"]
        rig.granter.poke()
        await until(lambda: rig.ledger.waiting_band == 0, "the hot path is closed to every band")
        assert rig.queue.claims == []
        rig.replica.yielding = False
        rig.granter.poke()
        await until(lambda: not rig.queue.tickets and rig.ledger.waiting_band is None, "served, and open again")


@pytest.mark.asyncio
async def test_a_claim_whose_reply_was_lost_is_repeated_under_the_same_id() -> None:
    async with running() as rig:
        rig.queue.tickets, rig.queue.failing = ["a"], 1
        rig.granter.poke()
        await until(lambda: not rig.queue.tickets, "granted")
        assert len(rig.queue.claims) == 2
        assert len(set(rig.queue.claims)) == 1


@pytest.mark.asyncio
async def test_while_redis_is_away_nothing_is_claimed_and_the_gate_is_open_to_all() -> None:
    async with running(slots=1) as rig:
        rig.queue.tickets = ["a", "b"]
        rig.granter.poke()
        await until(lambda: rig.ledger.waiting_band == 1, "b waits")
        rig.may_claim = False
        claims = len(rig.queue.claims)
        rig.granter.poke()
        await until(lambda: rig.ledger.waiting_band is None, "the gate forgets the band")
        assert len(rig.queue.claims) == claims


# --- jobs ------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_jobs_get_all_slots_but_one() -> None:
    async with running(slots=4) as rig:
        rig.queue.jobs = ["j1", "j2", "j3", "j4", "j5"]
        rig.granter.poke()
        await until(lambda: len(rig.jobs.taken) == 3, "three run")
        await until(lambda: rig.ledger.reserved == 0, "the fourth slot is nobody's")
        assert rig.jobs.refused == [], "the grants of jobs are not released"
        assert rig.replica.told == ["j1", "j2", "j3"], "the replica knows who may have waited for its wake"
        assert (rig.ledger.running, rig.queue.looks) == (3, 1)
        assert rig.ledger.admit(2, 0.0) is None, "and any request may have it at once, of whatever band"
        rig.jobs.end("j2")
        await until(lambda: set(rig.jobs.taken) == {"j1", "j3", "j4"}, "the next when one ends", 1)


@pytest.mark.asyncio
async def test_a_single_slot_is_not_kept_from_jobs() -> None:
    async with running(slots=1) as rig:
        rig.queue.jobs = ["j1", "j2"]
        rig.granter.poke()
        await until(lambda: set(rig.jobs.taken) == {"j1"}, "one runs")
        rig.jobs.end("j1")
        await until(lambda: set(rig.jobs.taken) == {"j2"}, "then the other")


@pytest.mark.asyncio
async def test_requests_come_before_jobs_and_may_have_every_slot() -> None:
    async with running(slots=2) as rig:
        rig.queue.tickets, rig.queue.jobs = ["a", "b"], ["j1"]
        rig.granter.poke()
        await until(lambda: not rig.queue.tickets, "both granted")
        assert rig.jobs.taken == {}
        rig.ledger.redeem("g1", 0.0)
        rig.ledger.redeem("g2", 0.0)
        rig.ledger.finish(0.0)
        rig.granter.slot_freed()
        await until(lambda: set(rig.jobs.taken) == {"j1"}, "then the job")


@pytest.mark.asyncio
async def test_a_job_that_was_handed_off_keeps_the_rights_of_the_request_that_it_was() -> None:
    async with running(slots=2) as rig:
        rig.queue.handed_off, rig.queue.jobs = ["h1", "h2"], ["j1"]
        rig.granter.poke()
        await until(lambda: set(rig.jobs.taken) == {"h1", "h2"}, "both slots, and before other jobs")


@pytest.mark.asyncio
async def test_nor_do_running_jobs_keep_it_waiting() -> None:
    async with running(slots=2) as rig:
        rig.queue.jobs = ["j1", "j2"]
        rig.granter.poke()
        await until(lambda: set(rig.jobs.taken) == {"j1"}, "jobs have their share")
        rig.queue.handed_off = ["h1"]
        rig.granter.poke()
        await until(lambda: set(rig.jobs.taken) == {"j1", "h1"}, "the slot that is kept for requests", 1)


@pytest.mark.asyncio
async def test_jobs_that_may_not_run_now_cost_a_hot_model_no_round_trips() -> None:
    async with running(slots=2) as rig:
        rig.queue.jobs = ["j1", "j2"]
        rig.granter.poke()
        await until(lambda: rig.jobs.taken and rig.ledger.reserved == 0, "one runs, one waits for it")
        looks, reservations = rig.queue.looks, rig.replica.control.reservations
        for _ in range(100):
            assert rig.ledger.admit(1, 0.0) is None
            rig.ledger.finish(0.0)
            rig.granter.slot_freed()
            await asyncio.sleep(0)
        assert (rig.queue.looks, rig.replica.control.reservations) == (looks, reservations)
