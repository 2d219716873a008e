"""Whoever waits for a job here waits on one loop, which reads all watched jobs from Redis together: no connection is
held for a reader, however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fleet import Jobs
from rewarm.jobs import TERMINAL, Job

EVERY_S = 0.2
_AT_ONCE = 200
_JOBS_A_SECOND = 2500.0
"""With more jobs watched than this allows every ``EVERY_S``, each is read less often."""


class Watched:
    """One reader's look at a job. ``job`` is the last reading, None before the first; ``gone`` once Redis knows it no
    more."""

    __slots__ = ("_news", "gone", "id", "job")

    def __init__(self, id_: str, job: Job | None) -> None:
        self.id = id_
        self.job = job
        self.gone = False
        self._news = asyncio.Event()

    def tell(self, job: Job | None) -> None:
        self.gone = job is None
        self.job = job or self.job
        self._news.set()

    async def news(self, within_s: float) -> None:
        """Until the next reading, of a job that may not have changed, or ``within_s``."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()


class JobWatch:
    """``leaving`` says that this gateway stops: nobody waits here any longer."""

    def __init__(self, jobs: Jobs, leaving: Callable[[], bool]) -> None:
        self._jobs = jobs
        self._leaving = leaving
        self._watched: dict[str, set[Watched]] = {}
        self._some = asyncio.Event()

    @property
    def leaving(self) -> bool:
        return self._leaving()

    def __len__(self) -> int:
        return sum(map(len, self._watched.values()))

    @contextmanager
    def watch(self, id_: str, job: Job | None = None) -> Iterator[Watched]:
        watched = Watched(id_, job)
        self._watched.setdefault(id_, set()).add(watched)
        self._some.set()
        try:
            yield watched
        finally:
            others = self._watched[id_]
            others.discard(watched)
            if not others:
                del self._watched[id_]

    async def ended(self, id_: str, within_s: float, job: Job | None = None) -> Job | None:
        """The job once it has ended, or as it is after ``within_s``; None where there is none."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        with self.watch(id_, job) as watched:
            while not watched.gone:
                if watched.job is not None and watched.job.state in TERMINAL:
                    break
                left_s = deadline - loop.time()
                if left_s <= 0 or self.leaving:
                    break
                await watched.news(min(left_s, 1.0))
            return None if watched.gone else watched.job

    async def follow(self) -> None:
        """The loop. Raises QueueUnavailable, to be started again: readers keep what they have."""
        while True:
            if not self._watched:
                self._some.clear()
                await self._some.wait()
            ids = list(self._watched)
            for start in range(0, len(ids), _AT_ONCE):
                some = ids[start : start + _AT_ONCE]
                for id_, job in zip(some, await self._jobs.get_many(some), strict=True):
                    for watched in self._watched.get(id_, ()):
                        watched.tell(job)
            await asyncio.sleep(max(EVERY_S, len(ids) / _JOBS_A_SECOND))
