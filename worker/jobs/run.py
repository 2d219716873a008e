"""One lease from its claim to the write that ends it: generate, write the output as it comes, finish or give back.

Nothing here fails because Redis is away: what is to be written waits, bounded, and is fenced when it arrives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from fleet import chain_of
from rewarm.errors import JobResultTooLarge, QueueUnavailable
from rewarm.fallback import after_last_attempt
from rewarm.jobs import JobLease
from rewarm.splice import splice_model
from rewarm.upstream import UpstreamPool
from worker.gate.control import GateUnreachable
from worker.jobs.ask import ask
from worker.jobs.attempt import Attempt, Limits
from worker.jobs.door import Door
from worker.jobs.output import Output
from worker.jobs.store import JobStore
from worker.jobs.verdict import (
    Answered,
    Drop,
    End,
    Finish,
    GivenBack,
    Lost,
    Overran,
    Refused,
    Requeue,
    TooLarge,
    Verdict,
    judge,
)

WRITE_AGAIN_S = 0.5
SLOT_AGAIN_S = 0.1
BODY_WITHIN_S = 2.0
"""The grant is kept about three seconds at the gate: a body that takes longer to read comes too late."""

_T = TypeVar("_T")
_log = logging.getLogger("rewarm.worker.jobs")


class Place(Protocol):
    """The replica, or the upstream, that the lease is for."""

    @property
    def id(self) -> str: ...

    def enter(self, pool: UpstreamPool) -> Door:
        """Where the job goes in; ``pool`` has the connections to gates."""

    @property
    def leaving(self) -> bool:
        """It was told to stop: its engine's end is no fault of what it runs."""

    @property
    def answer_stall_s(self) -> float: ...

    @property
    def serving(self) -> bool: ...

    def refuses(self, model: str) -> End | None:
        """Why the job of an adapter is not run there."""

    async def slot(self) -> str | None:
        """A grant at its gate, None while there is none. Raise GateUnreachable."""


class Run:
    """``writes`` bounds the writes of output under way at once, over all runs of a worker: a renewal must always find
    a free connection. ``on_generated`` is called once, when the gate's slot is free again.

    ``suspects`` is the replica's: jobs of which an attempt came to nothing run one at a time, because when an engine
    dies nobody knows of which job, and those beside it would use up their attempts together with it. It is held until
    the end is written, pause included: by then a replica whose engine died is known to have failed.
    """

    def __init__(
        self,
        lease: JobLease,
        place: Place,
        store: JobStore,
        pool: UpstreamPool,
        boot: str,
        writes: asyncio.Semaphore,
        suspects: asyncio.Lock,
        on_generated: Callable[[], None],
    ) -> None:
        self.lease = lease
        self.place = place
        self.generating = True
        self._store = store
        self._pool = pool
        self._boot = boot
        self._writes = writes
        self._suspects = suspects
        self._on_generated = on_generated
        self._told: End | None = None
        self._scope: asyncio.Timeout | None = None
        self._attempt: Attempt | None = None
        self._lost = False
        self._is_suspect = False  # and holds the lock
        self._hurry = asyncio.Event()  # do not pause any more

    @property
    def id(self) -> str:
        return self.lease.spec.id

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.lease.attempt

    def abort(self, end: End) -> None:
        """End the generation now: its connection closes before anything else happens. The first reason counts; once
        the answer is whole, only the loss of the lease changes what is written."""
        self._lost = self._lost or isinstance(end, Lost)
        if isinstance(end, GivenBack | Lost):
            self._hurry.set()
        if self.generating and self._told is None:
            self._stop(end)

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            if self._is_suspect:
                self._suspects.release()

    async def _run(self) -> None:
        end = await self._generate()
        self._generated()
        tokens = self._attempt.tokens if self._attempt is not None else 0
        verdict = judge(end, attempt=self.lease.spent, leaving=self.place.leaving, tokens=tokens)
        try:
            await self._settle(verdict)
        except JobResultTooLarge:
            await self._settle(judge(TooLarge(self._store.limits.max_result), attempt=1, leaving=False, tokens=tokens))

    def _generated(self) -> None:
        if self.generating:
            self.generating = False
            self._on_generated()

    # -- generating

    async def _generate(self) -> End:
        try:
            async with asyncio.timeout(None) as self._scope:
                if self._told is not None:
                    return self._told
                if self.lease.spent == 1:
                    return await self._work(self.lease.grant)
                waits = self._suspects.locked()
                self._is_suspect = await self._suspects.acquire()
                grant = await self._another_grant() if waits else self.lease.grant
                return Refused("the replica serves no more") if grant is None else await self._work(grant)
        except TimeoutError:
            return self._told or Overran(self.lease.spec.max_run_s)
        finally:
            self._scope = None

    async def _another_grant(self) -> str | None:
        """The one of the lease has expired meanwhile, at the latest; None when the replica serves no more."""
        while self.place.serving:
            try:
                grant = await self.place.slot()
            except GateUnreachable:
                return None
            if grant is not None:
                return grant
            await asyncio.sleep(SLOT_AGAIN_S)
        return None

    async def _work(self, grant: str) -> End:
        if self._told is not None or self._scope is None:
            return self._told or Lost()  # a deadline set now would take the abort back
        self._scope.reschedule(asyncio.get_running_loop().time() + self.lease.spec.max_run_s)
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                body = await self._steadily(lambda: self._store.body(self.id))
        except TimeoutError:
            return Refused("the body could not be read in time")
        if body is None:
            return Lost()
        limits = Limits(self.place.answer_stall_s, self._store.limits.max_result)
        spec, model = self.lease.spec, chain_of(self.lease.spec, self.lease.chain, self.lease.created_ms).current
        if model in spec.homes and (end := self.place.refuses(model)) is not None:
            return end
        if model != spec.model or (model in spec.homes and model != spec.asked_model):
            # A fallback answers under its own name, and an engine knows no adapter's aliases.
            body = splice_model(body, model)
        asked = ask(self.lease.spec.path, body)
        self._attempt = Attempt(self.place.enter(self._pool), self.lease, grant, asked, limits)
        output = Output(self.write)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(output.write_out())
            end = await self._attempt.run(output.put)
            if isinstance(end, Answered) and self._unless_told(end) is end:
                self._generated()
                self._scope.reschedule(None)  # what is left to do is Redis's time, not the job's
                output.close()
                await writing
            else:
                writing.cancel()
        return self._unless_told(end)

    def _unless_told(self, end: End) -> End:
        return self._told or end

    async def write(self, seq: int, data: bytes, tokens: int) -> bool:
        """One chunk, however long Redis is away. False: nothing more is to be written."""

        async def once() -> bool:
            async with self._writes:
                return await self._store.chunk(self.id, self._boot, self.lease.attempt, seq, data, tokens=tokens)

        try:
            if await self._steadily(once):
                return True
            self._stop(Lost())
        except QueueUnavailable:
            self._stop(Lost())
        except JobResultTooLarge:
            self._stop(TooLarge(self._store.limits.max_result))
        return False

    def _stop(self, end: End) -> None:
        self._told = self._told or end
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    # -- settling

    async def _settle(self, verdict: Verdict) -> None:
        lease = self.lease
        match verdict:
            case Drop():
                _log.warning("event=job-lost job=%s attempt=%d", *self.key)
            case Finish(outcome, result):
                done = await self._steadily(
                    lambda: self._store.finish(self.id, self._boot, lease.attempt, outcome, result)
                )
                _log.info(
                    "event=job-ended job=%s attempt=%d state=%s code=%s tokens=%d written=%s",
                    *(*self.key, outcome.state.value, outcome.error_code, outcome.tokens, done),
                )
            case Requeue(spent, reason, after_s):
                if spent and await self._passed_on(reason):
                    return
                await self._pause(after_s)
                done = await self._steadily(
                    lambda: self._store.requeue(self.id, self._boot, lease.attempt, spent=spent, reason=reason)
                )
                _log.info(
                    "event=job-requeued job=%s attempt=%d spent=%s written=%s reason=%s",
                    *(*self.key, spent, done, reason),
                )

    async def _passed_on(self, reason: str) -> bool:
        """Its last attempt came to nothing: on to the next model of its fallback chain, if there is one."""
        lease = self.lease
        if lease.spent < lease.spec.max_attempts:
            return False
        chain = chain_of(lease.spec, lease.chain, lease.created_ms)
        if not chain.links:
            return False
        step = after_last_attempt(chain, await self._steadily(lambda: self._store.models(chain.links)))
        if step is None:
            return False
        done = await self._steadily(lambda: self._store.pass_on(lease, self._boot, step.chain, step.reason))
        _log.info(
            "event=job-passed-on job=%s attempt=%d to=%s written=%s reason=%s",
            *(*self.key, step.chain.current, done, reason),
        )
        return done

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _steadily(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Again and again while Redis is away. All these calls may be repeated; the fence says what still counts."""
        while True:
            try:
                return await call()
            except QueueUnavailable as error:
                if self._lost:
                    raise  # it would be refused anyway
                _log.debug("event=job-write-waits job=%s error=%s", self.id, error)
                await asyncio.sleep(WRITE_AGAIN_S)
