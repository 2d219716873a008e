"""The agent's side of one pool: keeps it as :mod:`worker.pool.plan` wants it, and hands processes out.

Whatever goes wrong in here makes a start plain and is told; nothing of it fails a load. A process that does not answer
in time is killed with what it was about to make, and its like is made anew after a pause that grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rewarm.messages import PoolReport, PreparedReport
from rewarm.units import format_bytes
from worker.devices.device import RAM
from worker.engines.hostfile import HostFile
from worker.memory import Holding
from worker.pool import wire
from worker.pool.kind import KINDS, Kind, load_kind
from worker.pool.making import Maker
from worker.pool.member import Lost, Member, Refusal, Shortage, end_all
from worker.pool.pause import Pause
from worker.pool.plan import ANY, Goal, Import, Prepare, Ready, Retire, State, next_step
from worker.pool.registrations import Registrations
from worker.procs import pss_bytes
from worker.surroundings import Surroundings

VERSIONS_EVERY_S = 30.0
_EVERY_S = 1.0
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 300.0
_AGAIN_S = 15.0  # until a model whose process was lost is prepared anew, the first time
_LONGEST_AGAIN_S = 1800.0  # one that hangs keeps all others waiting for PREPARE_WITHIN_S each time
_NEEDED = "its memory was needed for an engine"
_log = logging.getLogger("rewarm.worker.pool")


@dataclass(slots=True)
class Shelf:
    """One process that others are forked from, and those that it made ahead."""

    source: Member
    ready: list[Member] = field(default_factory=list)

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.source, *self.ready)


class NotPooled(Exception):
    """The pool has no process for this start, and why not."""


class Pool:
    """``loading`` says whether an engine of this agent is being loaded now."""

    def __init__(
        self, engine: str, surroundings: Surroundings, loading: Callable[[], bool] = lambda: False, *, module: str = ""
    ) -> None:
        config = surroundings.config.pool
        self._engine = engine
        self._module = module or KINDS[engine]
        self._kind: Kind = load_kind(self._module)
        self._around = surroundings
        self._loading = loading
        self._whole_goal = self._goal = Goal(config.models, config.ready)
        self._fork_within_s = config.fork_timeout.total_seconds()
        self._importing: asyncio.Task[tuple[Member, dict[str, str]]] | None = None
        self._make = Maker(engine, self._module, surroundings, loading, self._fork_within_s)
        self._off = "switched off" if config.enabled == "off" else self._kind.unusable()
        self._shelves: dict[str, Shelf] = {}
        self._models = Registrations()
        self._losses: dict[str, Pause] = {}  # key → of a process that is prepared for it
        self._whole_at: dict[str, float] = {}  # key → when its engine, now in parts, is built ahead again
        self._versions: dict[str, str] = {}
        self._versions_at = 0.0
        self._retry_at = 0.0
        self._pause = Pause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._short = Pause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)  # of what a fork takes
        self._why = "it has not started yet"  # there is none
        self._state = "off" if self._off else "waiting"
        self._look = asyncio.Event()
        self._starts = {"pooled": 0, "plain": 0}
        self._zygotes = 0
        self._concerned = False
        self._away: set[int] = set()  # processes given to replicas, until they end
        self.memory_bytes = 0

    # -- what others see

    @property
    def children(self) -> set[int]:
        """Processes whose end is waited for here."""
        return {member.pid for member in self._members()} | self._away

    @property
    def concerned(self) -> bool:
        """Whether there is any model of its kind."""
        return self._concerned

    def report(self) -> PoolReport:
        return PoolReport(
            kind=self._engine,
            state=self._state,
            reason=self._off or self._why,
            pid=self._shelves[ANY].source.pid if ANY in self._shelves else None,
            versions=self._versions,
            memory_bytes=self.memory_bytes,
            prepared=self._models.reports(self._ready_by_key()),
            pooled=self._starts["pooled"],
            plain=self._starts["plain"],
            zygotes=self._zygotes,
        )

    # -- what it is for

    def register(self, wanted: Mapping[str, HostFile], unregistered: Iterable[PreparedReport] = ()) -> None:
        """Key → what the host file of its model would be now; and models that have none, with the reason. Replaces what
        was registered before."""
        told = tuple(unregistered)
        self._concerned = bool(wanted or told)
        if self._off:
            return
        self._models.unregistered = told
        if self._models.replace(wanted, self._kind):
            self._goal = self._whole_goal  # others may take less
            self._losses = {name: pause for name, pause in self._losses.items() if name in self._models.known}
            self._whole_at = {name: at for name, at in self._whole_at.items() if name in self._models.known}
            self._look.set()

    async def start(self, host: HostFile, host_path: str, environment: Mapping[str, str], log: int) -> Member:
        """A process that is becoming the host of ``host_path``. Raise NotPooled."""
        try:
            member = await self._start(host, host_path, environment, log)
        except NotPooled:
            self._starts["plain"] += 1
            raise
        self._starts["pooled"] += 1
        return member

    async def _start(self, host: HostFile, host_path: str, environment: Mapping[str, str], log: int) -> Member:
        if self._off:
            raise NotPooled(self._off)
        if host.attempt > 1:
            raise NotPooled("an attempt before this one failed")
        if why := self._kind.unsuitable(host.spec):
            raise NotPooled(why)
        name = self._models.use(host)
        if name not in self._shelves:
            name = ANY
        if name not in self._shelves:
            raise NotPooled(self._why)
        try:
            member = await self._take(name)
            go = wire.Go(host_path, host.replica, dict(environment), self._models.proven(host))
            try:
                await member.ask(go, wire.Done, self._fork_within_s, (log,))
            except (Lost, Refusal) as error:
                await member.end()
                raise NotPooled(f"the forked process {error}") from error
        finally:
            self._look.set()
        member.close()
        self._away.add(member.pid)
        member_ended = asyncio.ensure_future(member.wait())
        member_ended.add_done_callback(lambda _: self._away.discard(member.pid))
        return member

    def proved(self, host: HostFile, weights: str) -> None:
        """The engine that was started from here for ``host`` has answered rightly with ``weights``."""
        self._models.prove(host, weights)

    async def _take(self, name: str) -> Member:
        """One that was forked ahead, else one that is forked now."""
        shelf = self._shelves[name]
        while shelf.ready:
            member = shelf.ready.pop()
            if member.returncode is None:
                return member
            member.close()
        try:
            return await self._make.fork(shelf.source)
        except Refusal as refusal:
            raise NotPooled(str(refusal)) from refusal
        except Lost as lost:
            await self._blame(name, shelf, str(lost))
            raise NotPooled(f"the process to fork from {lost}") from lost

    async def give_back(self) -> bool:
        """All memory of the pool, for an engine that does not fit otherwise."""
        importing = self._importing
        if importing is not None:  # stopped while anything loads: it would keep its memory from just that load
            self._wait(_FIRST_PAUSE_S)
            importing.cancel()
            await asyncio.wait((importing,))
            self._hold(Holding(0))
            return True
        if not self._shelves:
            return False
        self._wait(_FIRST_PAUSE_S)  # before the processes end: else the pool's own loop begins anew meanwhile
        await self._retire(ANY, _NEEDED)
        self._hold(Holding(0))
        return True

    # -- how it is kept

    async def run(self) -> None:
        """For as long as the agent lives; cancelled at its end, with nothing left."""
        try:
            while True:
                await self._sweep()
                step = next_step(self._now_there(), self._goal, self._around.monotonic())
                if step is not None:
                    await self._do(step)
                    self._around.changed.set()
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY_S):
                        await self._look.wait()
                self._look.clear()
        finally:
            await self._retire(ANY, "the worker stops")

    def _now_there(self) -> State:
        now = self._around.monotonic()
        outdated = False
        if ANY in self._shelves and now - self._versions_at >= VERSIONS_EVERY_S:
            self._versions_at = now
            with contextlib.suppress(OSError):  # no descriptor left to read them with
                outdated = self._kind.versions() != self._versions
        return State(
            registered=() if self._off else tuple(self._models.known),
            prepared=self._ready_by_key(),
            refused=self._models.refused(now),
            again=self._again(),
            outdated=outdated,
            loading=self._loading(),
            over_limit=self.memory_bytes > self._around.config.pool.memory,
            retry_at=self._retry_at,
            fork_at=self._short.until,
        )

    def _again(self) -> frozenset[str]:
        """Models in parts whose engine may be built as a whole by now."""
        now = self._around.monotonic()
        return frozenset(name for name in self._models.in_parts if now >= self._whole_at.get(name, math.inf))

    async def _do(self, step: Import | Prepare | Ready | Retire) -> None:
        match step:
            case Import():
                try:
                    await self._import()
                except OSError as error:  # the machine's lock or its memory could not be read
                    self._failed(f"the pool cannot be made: {error}")
                    await self.measure()
            case Prepare(name):
                await self._prepare(name)
            case Ready(name):
                await self._ready(name)
            case Retire(name, why, over_limit):
                if name == ANY and over_limit:
                    await self._retire_as_too_large(why)
                elif name == ANY:
                    await self._retire(ANY, why)
                    self._wait(_FIRST_PAUSE_S)
                else:
                    if over_limit:
                        self._goal = replace(self._goal, models=max(0, len(self._shelves) - 2))  # not at once again
                    await self._retire(name, why)
                await self.measure()

    async def _retire_as_too_large(self, why: str) -> None:
        """A zygote that is too large by itself would be so again: it is not made again in this worker's life, whose
        `pool.memory` stays what it is."""
        await self.measure()  # what was measured last may have begun before the last model was given up
        most = self._around.config.pool.memory
        if self.memory_bytes <= most:
            return
        alone = len(self._members()) == 1
        took = format_bytes(self.memory_bytes)
        await self._retire(ANY, f"{why}: {took}; `pool.memory` is {format_bytes(most)}")
        self._state = "no_room"
        self._wait(math.inf if alone else _LONGEST_PAUSE_S)

    async def _import(self) -> None:
        need = self._kind.need_bytes
        async with self._around.device.hold() as others:
            readings, words = await self._around.watch.read(), f"{format_bytes(need)} for the pool"
            verdict = self._around.ledgers.admit({RAM: need}, words, readings, others)
            if not verdict.fits:
                self._failed(f"no memory for the pool: {verdict.message}", "no_room")
                return
            self._hold(Holding(need))
        self._state, self._why = "starting", "it is still importing"
        self._around.changed.set()
        before = self._versions
        try:
            made = await self._import_zygote()
        except (Lost, Refusal) as error:
            self._hold(Holding(0))
            self._failed(f"the zygote {error}")
            return
        if made is None:
            self._state, self._why = "waiting", _NEEDED
            return
        member, self._versions = made
        self._shelves[ANY] = Shelf(member)
        if self._versions != before:
            self._models.forget_all_learnt()
            for name in [name for name in self._shelves if name != ANY]:
                await self._retire(name, "other versions are installed")
        self._zygotes += 1
        self._state, self._why = "ready", ""
        self._versions_at = self._around.monotonic()
        await self.measure()

    async def _import_zygote(self) -> tuple[Member, dict[str, str]] | None:
        """None where its memory was asked back meanwhile. Raise Lost, Refusal."""
        importing = self._importing = asyncio.create_task(self._make.zygote(), name="zygote")
        try:
            await asyncio.wait((importing,))
        finally:
            self._importing = None
            if not importing.done():
                importing.cancel()
                await asyncio.wait((importing,))
        return None if importing.cancelled() else importing.result()

    async def _prepare(self, name: str) -> None:
        host = self._models.known[name]
        member = await self._fork(ANY)
        if member is None:
            return
        not_yet = self._models.in_parts.keys() - self._again()
        whole = self._around.config.pool.build_ahead != "off" and name not in not_yet
        try:
            in_parts = await self._make.prepare(member, name, host, whole=whole)
        except Shortage as shortage:
            self._stand_back(shortage)
            return
        except (Lost, Refusal) as error:
            again_s = math.inf if isinstance(error, Refusal) else self._lost(name)  # its files are what they are
            again_at = self._around.monotonic() + again_s
            if whole:
                self._models.in_parts[name] = str(error)  # at once again, with less
                self._whole_at[name] = again_at
                _log.warning("event=not-built-ahead model=%s again_in_s=%.0f error=%s", host.spec.model, again_s, error)
                return
            self._models.refuse(name, str(error), again_at)
            _log.error("event=not-prepared model=%s again_in_s=%.0f error=%s", host.spec.model, again_s, error)
            return
        if in_parts:
            self._models.in_parts[name] = in_parts
            self._whole_at.pop(name, None)
        elif whole:
            self._whole_at.pop(name, None)
            if self._models.in_parts.pop(name, None):
                self._models.unprove(name)  # those that proved it were none of these
        before = self._shelves.get(name)
        self._shelves[name] = Shelf(member)
        if before is not None:
            await end_all(before.members)
        await self.measure()

    async def _ready(self, name: str) -> None:
        shelf = self._shelves[name]
        member = await self._fork(name)
        if member is None:
            return
        if self._shelves.get(name) is shelf:
            shelf.ready.append(member)
        else:
            await member.end()

    async def _fork(self, name: str) -> Member | None:
        """One more of what is prepared for ``name``; None where there is none, and what that calls for is done."""
        shelf = self._shelves[name]
        try:
            return await self._make.fork(shelf.source)
        except Shortage as shortage:
            self._stand_back(shortage)
        except (Lost, Refusal) as error:
            await self._blame(name, shelf, str(error))
        return None

    # -- what goes wrong

    def _stand_back(self, shortage: Shortage) -> None:
        """What there is is well and stays; more is made later."""
        pause_s = self._short.failed(self._around.monotonic())
        _log.warning("event=pool-short engine=%s again_in_s=%.0f error=%s", self._engine, pause_s, shortage)

    async def _sweep(self) -> None:
        """Processes that ended by themselves, or were killed."""
        for name, shelf in list(self._shelves.items()):
            for member in [member for member in shelf.ready if member.returncode is not None]:
                shelf.ready.remove(member)
                member.close()
            if shelf.source.returncode is not None:
                await self._blame(name, shelf, f"ended with status {shelf.source.returncode}")

    async def _blame(self, name: str, shelf: Shelf, why: str) -> None:
        """A process that others are forked from is of no use: end it. What was forked from it before may still be."""
        if self._shelves.get(name) is not shelf:
            return  # retired meanwhile
        _log.error("event=pool-process-lost key=%s error=%s", name or "any", why)
        del self._shelves[name]
        if name == ANY:
            self._failed(f"the zygote {why}")
        else:
            self._models.refuse(name, why, self._around.monotonic() + self._lost(name))
        await end_all(shelf.members)

    def _lost(self, name: str) -> float:
        """Seconds until something is prepared for it again."""
        pause = self._losses.setdefault(name, Pause(_AGAIN_S, _LONGEST_AGAIN_S))
        return pause.failed(self._around.monotonic())

    def _failed(self, why: str, state: str = "failed") -> None:
        self._state, self._why = state, why
        pause_s = self._pause.failed(self._around.monotonic())
        self._wait(pause_s)
        _log.error("event=no-pool engine=%s again_in_s=%.0f error=%s", self._engine, pause_s, why)

    def _wait(self, pause_s: float) -> None:
        self._retry_at = self._around.monotonic() + pause_s

    async def _retire(self, name: str, why: str) -> None:
        names = list(self._shelves) if name == ANY else [name]
        members = [member for one in names if one in self._shelves for member in self._shelves.pop(one).members]
        if not members:
            return
        _log.info("event=retired key=%s processes=%d why=%s", name or "any", len(members), why)
        if name == ANY:
            self._state, self._why = "waiting", why
            self._models.forget_refusals()
            self._goal = self._whole_goal
        await end_all(members)

    # -- memory

    async def measure(self) -> None:
        """Into the ledger: what all of it takes, divided by who shares it."""
        pids = [member.pid for member in self._members()]
        self.memory_bytes = await asyncio.to_thread(lambda: sum(map(pss_bytes, pids)))
        if self._shelves:
            self._hold(Holding(max(self._kind.need_bytes, self.memory_bytes), self.memory_bytes))
        elif self._state != "starting":
            self._hold(Holding(0))

    def _hold(self, holding: Holding) -> None:
        self._around.ledgers.ram.spares[self._engine] = holding

    def _ready_by_key(self) -> dict[str, int]:
        return {name: len(shelf.ready) for name, shelf in self._shelves.items()}

    def _members(self) -> list[Member]:
        return [member for shelf in self._shelves.values() for member in shelf.members]
