"""Free slots of one ready replica to what waits for its model: reserve, claim, release what was not used.

A claim serves held requests and durable jobs in one order. The grant of a request goes to its gateway by itself; a job
is leased to this worker, and its grant goes to the job runner here. Jobs get all slots but one (of several), so that a
request never waits for a job's end; one that was handed off by a waiting client keeps that client's rights.

Woken by events: a ticket was enqueued, a slot became free, the replica became ready; every two seconds in any case.
Nothing is reserved unless tickets wait, so that the hot path does not find slots taken for nobody.

The gate is told which band waits: direct requests of that band and below then become tickets too instead of
overtaking. When Redis is out of reach the gate forgets it, since nothing can be claimed then and the slots would stay
empty.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from fleet import BANDS, JOB_BANDS, Claimed, Queue, Waiting
from rewarm.errors import QueueUnavailable
from worker.claiming import claim_steadily
from worker.gate.control import GateUnreachable
from worker.jobs import JobRunner
from worker.replica import Replica
from worker.supervise import wait_set

TICK_S = 2.0
_PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0)
_log = logging.getLogger("rewarm.worker.granter")


class Availability(Protocol):
    """Whether claims may be made now: Redis is reachable and the agent does not drain."""

    @property
    def may_claim(self) -> bool: ...


def most_jobs(slots: int) -> int:
    """Slots of a replica that jobs may hold at once."""
    return max(1, slots - 1)


class Granter:
    def __init__(
        self, replica: Replica, queue: Queue, worker: str, availability: Availability, jobs: JobRunner
    ) -> None:
        self._replica = replica
        self._queue = queue
        self._worker = worker
        self._availability = availability
        self._jobs = jobs
        self._poked = asyncio.Event()
        self._maybe_waiting = True
        self._jobs_wait = False  # for a job's end: no slot that a request frees helps them
        self._failures = 0
        self._band: int | None = None  # as the gate was last told

    def poke(self) -> None:
        """A ticket may wait: look."""
        self._maybe_waiting = True
        self._poked.set()

    def slot_freed(self) -> None:
        """Look only if tickets were waiting: a hot model frees slots all the time, without any round trip to Redis."""
        if self._maybe_waiting:
            self._poked.set()

    def job_ended(self) -> None:
        """A job's share of the slots is free again."""
        if self._maybe_waiting or self._jobs_wait:
            self.poke()

    async def run(self) -> None:
        while True:
            if not await wait_set(self._poked, TICK_S):
                self._maybe_waiting = True
            if not self._replica.serving:
                continue
            try:
                if self._replica.yielding:
                    # Others need its memory: what runs may end, everything else queues until its next turn.
                    await self._tell_band(min(BANDS))
                elif self._availability.may_claim:
                    await self._grant()
                else:
                    await self._tell_band(None)
                self._failures = 0
            except (QueueUnavailable, GateUnreachable) as error:
                pause_s = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
                self._failures += 1
                if self._failures in (1, 10, 100):
                    _log.warning("event=no-grants replica=%s error=%s again_in_s=%s", self._replica.id, error, pause_s)
                self._maybe_waiting = True
                await self._open_to_all()
                await asyncio.sleep(pause_s)
                self._poked.set()

    async def _grant(self) -> None:
        """Rounds of reserve and claim until nobody waits or no slot is free."""
        model = self._replica.model
        while self._maybe_waiting and self._replica.serving and not self._replica.yielding:
            self._maybe_waiting = False  # before the look: a ticket that comes during it sets it again
            waiting = (await self._queue.waiting([model])).get(model) or Waiting()
            room = self._room_for_jobs()
            wanted = waiting.count + waiting.handed_off + min(waiting.jobs - waiting.handed_off, room)
            self._jobs_wait = waiting.jobs > 0
            if wanted == 0:
                await self._tell_band(None)
                continue
            self._maybe_waiting = True
            grants, state = await self._replica.control.reserve(wanted)
            if not grants:
                # Full: the next free slot goes to a ticket, and wakes us.
                await self._tell_band(None if state.draining else waiting.highest_band)
                return
            self._maybe_waiting = False
            claimed = await self._claim(grants, room)
            for lease in claimed.jobs:
                self._replica.job_taken(lease)
                self._jobs.take(lease, self._replica, self.job_ended)
            room = self._room_for_jobs()
            self._jobs_wait = claimed.jobs_waiting > 0
            self._maybe_waiting = self._maybe_waiting or claimed.waiting > 0 or (self._jobs_wait and room > 0)
            used = {grant.grant for grant in claimed.grants} | {lease.grant for lease in claimed.jobs}
            unused = [grant for grant in grants if grant not in used]
            if unused:
                await self._replica.control.release(unused)
            await self._tell_band(claimed.highest_waiting_band)
            if not used:
                return  # others took them; what is left is looked at on the next hint or tick

    def _room_for_jobs(self) -> int:
        return max(0, most_jobs(self._replica.slots) - self._jobs.generating(self._replica.id, JOB_BANDS.values()))

    async def _claim(self, grants: tuple[str, ...], max_jobs: int) -> Claimed:
        replica = self._replica
        return await claim_steadily(
            self._queue,
            replica.model,
            self._worker,
            replica.id,
            replica.endpoint or "",
            grants,
            max_jobs=max_jobs,
            boot=self._jobs.boot,
        )

    async def _tell_band(self, band: int | None) -> None:
        if band is not None and band not in BANDS:
            band = None  # only jobs wait: every request comes before them
        gate = self._replica.gate
        if band == self._band and (gate is None or gate.waiting_band == band):
            return
        await self._replica.control.set_waiting_band(band)
        self._band = band

    async def _open_to_all(self) -> None:
        try:
            await self._tell_band(None)
        except GateUnreachable:
            pass  # the replica's own watch finds out what that means
