"""All jobs that this worker runs: taken from claims, kept by one renewal loop, given back when the worker stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

from rewarm.errors import QueueUnavailable
from rewarm.jobs import JobLease
from rewarm.upstream import UpstreamPool
from worker.jobs.run import Place, Run
from worker.jobs.store import JobStore
from worker.jobs.verdict import Cancelled, End, GivenBack, Lost
from worker.supervise import wait_set

RENEW_EVERY_S = 4.0
RENEW_AGAIN_S = 0.5
"""After a renewal that did not reach Redis: leases run out meanwhile."""

WRITES_AT_ONCE = 8
_log = logging.getLogger("rewarm.worker.jobs")


class JobRunner:
    """``boot`` is the agent's boot id, under which the leases were claimed."""

    def __init__(self, store: JobStore, pool: UpstreamPool, boot: str) -> None:
        self._store = store
        self._pool = pool
        self._boot = boot
        self._runs: dict[str, Run] = {}  # by job: the latest of each
        self._tasks: dict[Run, asyncio.Task[None]] = {}
        self._writes = asyncio.Semaphore(WRITES_AT_ONCE)
        self._suspects: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by replica, while runs hold it
        self._look = asyncio.Event()

    @property
    def boot(self) -> str:
        return self._boot

    def generating(self, replica: str, bands: Iterable[int]) -> int:
        """Jobs of these bands that hold a slot of the replica."""
        wanted = frozenset(bands)
        return sum(run.generating and run.place.id == replica and run.lease.spec.band in wanted for run in self._tasks)

    @property
    def running(self) -> int:
        return len(self._tasks)

    def take(self, lease: JobLease, place: Place, on_generated: Callable[[], None]) -> None:
        """Run it. The grant is redeemed at once: it is kept for a few seconds only."""
        suspects = self._suspects.setdefault(place.id, asyncio.Lock())
        run = Run(lease, place, self._store, self._pool, self._boot, self._writes, suspects, on_generated)
        before = self._runs.get(run.id)
        if before is not None:
            # Redis forgot the earlier claim, or took it back: two attempts must not write under one fence.
            before.abort(Lost())
        self._runs[run.id] = run
        task = asyncio.create_task(self._run(run, before), name=f"job {run.id}")
        self._tasks[run] = task
        _log.info("event=job-taken job=%s attempt=%d replica=%s", *run.key, place.id)

    async def renewals(self) -> None:
        """The one loop that keeps all leases; it waits for no write of output."""
        pause_s = RENEW_EVERY_S
        while True:
            await wait_set(self._look, pause_s)
            try:
                await self.renew()
                pause_s = RENEW_EVERY_S
            except QueueUnavailable as error:
                pause_s = RENEW_AGAIN_S
                _log.debug("event=jobs-not-renewed jobs=%d error=%s", self.running, error)

    def look(self) -> None:
        """Renew now: somebody cancelled, or Redis is back."""
        if self._tasks:
            self._look.set()

    async def renew(self) -> None:
        runs = list(self._runs.values())
        if not runs:
            return
        answers = await self._store.renew(self._boot, [run.key for run in runs])
        for run in runs:
            match answers.get(run.id):
                case "lost" | None:
                    run.abort(Lost())
                case "cancel":
                    run.abort(Cancelled())
                case _:
                    pass

    def give_back(self, reason: str) -> None:
        """Abort whatever still generates and return it to its place, without a spent attempt."""
        self._abort_all(GivenBack(reason))

    async def close(self, within_s: float) -> None:
        """Wait until all is written; what cannot be by then is left to its lease's end."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=within_s)
        left = list(self._tasks.values())
        for task in left:
            task.cancel()
        if left:
            _log.warning("event=jobs-left jobs=%d", len(left))
            await asyncio.wait(left)

    def _abort_all(self, end: End) -> None:
        for run in self._tasks:
            run.abort(end)

    async def _run(self, run: Run, before: Run | None) -> None:
        try:
            if before is not None and before in self._tasks:
                await asyncio.wait((self._tasks[before],))
            await run.run()
        except QueueUnavailable:
            pass  # lost, and Redis away: there is nothing to write
        except Exception:  # noqa: BLE001  # one job's end must not end the others, nor the worker
            _log.exception("event=job-crashed job=%s attempt=%d", *run.key)
        finally:
            self._tasks.pop(run, None)
            if self._runs.get(run.id) is run:
                del self._runs[run.id]
