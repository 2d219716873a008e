"""The edge of the room: campaign, read, decide, act. One loop; every write carries the leader's term."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from controller.act import Effects
from controller.backends import Backend, LocalAgents
from controller.decide import decide
from controller.events import Configured, Elected, Event, Operator, RedisBack, RedisLost, Tick
from controller.places import needed
from controller.state import ControllerState, Memory
from controller.usual import Usuals
from fleet import Bell, Commands, FleetClient, FleetView, Hint, Jobs, Leader, LostLeadership, Publisher, Queue, Registry
from rewarm.clock import Clock, SystemClock
from rewarm.config import PlacementRules
from rewarm.errors import QueueUnavailable
from rewarm.messages import CatalogueEntry, WorkerBeat

log = logging.getLogger("rewarm.controller")

TICK_S = 1.0
"""A round at least this often: idle clocks, expiry and reaping need no event."""

GAP_S = 0.05
"""And at most this often: under load every enqueue rings the bell, and one look serves them all."""

REAP_BATCH = 100


class Reload:
    """What the configuration asks for; ``replace`` it when the file was read again."""

    def __init__(self, entries: Mapping[str, CatalogueEntry], rules: PlacementRules | None = None) -> None:
        self.entries = dict(entries)
        self.rules = rules or PlacementRules()
        self.version = 0
        self.on_change: Callable[[], None] | None = None

    def replace(self, entries: Mapping[str, CatalogueEntry], rules: PlacementRules | None = None) -> None:
        self.entries = dict(entries)
        self.rules = rules or self.rules
        self.version += 1
        if self.on_change is not None:
            self.on_change()


async def run(
    client: FleetClient,
    reload: Reload,
    owner: str,
    *,
    backend: Backend | None = None,
    clock: Clock | None = None,
) -> None:
    """Be a candidate, and the leader whenever elected, until cancelled; then resign."""
    candidate = _Candidate(client, reload, owner, backend or LocalAgents(), clock or SystemClock())
    try:
        async with asyncio.TaskGroup() as group:
            candidate.tasks = group
            group.create_task(candidate.listen(), name="controller-bell")
            group.create_task(candidate.rounds(), name="controller-rounds")
    finally:
        await candidate.resign()


class _Candidate:
    def __init__(self, client: FleetClient, reload: Reload, owner: str, backend: Backend, clock: Clock) -> None:
        self._client, self._reload, self._backend, self._clock = client, reload, backend, clock
        self.tasks: asyncio.TaskGroup | None = None
        self._driving: asyncio.Task[None] | None = None  # the backend, while we lead
        self._leader = Leader(client, owner)
        self._publisher = Publisher(client, self._leader)
        self._queue = Queue(client)
        self._jobs = Jobs(client)
        self._registry = Registry(client)
        self._usuals = Usuals(self._registry)
        self._commands = Commands(client)
        self._effects = Effects(self._publisher, self._queue, self._jobs, self._leader)
        self._bell = asyncio.Event()
        self._memory = Memory()
        self._installed = 0  # the term that was begun in full: until then it is begun again
        self._published = -1  # version of the configuration that is in Redis
        self._absent: dict[str, WorkerBeat] | None = None  # as last said; None: an earlier leader's may be there
        self._view: FleetView | None = None
        self._campaigned_s = -TICK_S
        self._reaped_s = 0.0
        self._bell.set()  # the first round is now
        reload.on_change = self._bell.set

    async def listen(self) -> None:
        """Rounds on hints; not on progress of loads, which changes no decision and comes ten times a second."""
        while True:
            try:
                async for event in Bell(self._client).listen():
                    if not (isinstance(event, Hint) and event.reason == "load"):
                        self._bell.set()
            except Exception:
                # Ticks go on meanwhile: slower, and nobody is lost. Ending here would end the gateway beside us.
                log.exception("the bell failed, listening again")
                await self._clock.sleep(TICK_S)

    async def rounds(self) -> None:
        trouble = 0
        while True:
            try:
                # Not wait_for: until Python 3.12 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(TICK_S):
                    await self._bell.wait()
            except TimeoutError:
                pass
            self._bell.clear()
            try:
                await self._round()
                trouble = 0
            except LostLeadership:
                log.warning("lost the leadership term=%d", self._memory.term)
                self._follow()
            except QueueUnavailable as error:
                self._redis_lost(error)
            except Exception:
                # A bug in a decision must not end the loop: the fleet would stand still without a word.
                trouble += 1
                log.exception("a round failed times=%d", trouble)
                await self._clock.sleep(min(2.0**trouble, 30.0))
            await self._clock.sleep(GAP_S)

    async def resign(self) -> None:
        try:
            async with asyncio.timeout(2):
                await self._leader.resign()
        except (QueueUnavailable, LostLeadership, TimeoutError) as error:
            log.info("could not resign, the term runs out by itself error=%r", str(error))

    async def _round(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._campaigned_s >= TICK_S or not self._leader.trusted():
            self._campaigned_s = now_s
            term = await self._leader.campaign()
            if term is None:
                if self._memory.term:
                    log.info("no longer the leader term=%d", self._memory.term)
                self._follow()
                return
            if term != self._installed:
                await self._install(term)
        if not self._installed:
            return
        if self._memory.redis_lost:
            log.warning("redis answers again; nothing expires for a while")
            await self._decide(RedisBack())
            self._published = -1
        if self._published != self._reload.version:
            await self._publish()
        for command in await self._commands.take(*self._leader.claim()):
            log.info("command kind=%s target=%s", command.kind, command.target)
            await self._decide(Operator(command.kind, command.target))
        await self._decide(Tick())
        await self._reap(now_s)

    async def _install(self, term: int) -> None:
        """Begin a term; what of it Redis did not take is done again with the next campaign."""
        if term != self._memory.term:
            log.info("elected term=%d", term)
            self._follow()
        await self._decide(Elected(term))
        await self._publish()
        assert self.tasks is not None
        self._driving = self.tasks.create_task(self._drive(), name="controller-backend")
        self._installed = term

    def _follow(self) -> None:
        """Another one leads, or nobody: forget what a leader knows, and leave the cluster to it."""
        self._memory = Memory(serial=self._memory.serial)
        self._installed = 0
        self._published = -1
        self._absent = None
        if self._driving is not None:
            self._driving.cancel()
            self._driving = None

    async def _drive(self) -> None:
        while True:
            try:
                await self._backend.lead(self._bell.set, self._leader.trusted)
            except Exception:
                log.exception("the backend failed, starting it again")
            await self._clock.sleep(TICK_S)

    async def _publish(self) -> None:
        version = self._reload.version
        self._backend.configure(self._reload.entries)
        await self._decide(Configured(self._reload.entries, self._reload.rules))
        self._published = version

    async def _decide(self, event: Event) -> None:
        """Look again for every event: what the last one made us write has to be seen."""
        self._view = await self._registry.snapshot()
        places = await self._usuals.of(self._view, self._backend.places)
        decision = decide(ControllerState(self._view, self._memory, places), event, self._view.now_ms)
        memory = decision.state.memory
        # Should Redis fail half-way, all is decided again; only ids must not be given a second time.
        self._memory = replace(self._memory, term=memory.term, serial=memory.serial)
        await self._effects.carry_out(decision.actions)
        self._memory = memory
        self._backend.need(needed(self._view, places))
        await self._answer_for(decision.absent)

    async def _answer_for(self, absent: Mapping[str, WorkerBeat]) -> None:
        """Publish what is said for places without a worker, where it has changed."""
        said = {name: msgspec.structs.replace(beat, at_ms=0) for name, beat in absent.items()}
        if said != self._absent:
            await self._publisher.absent(absent)
            self._absent = said

    async def _reap(self, now_s: float) -> None:
        holding = self._view is not None and self._view.now_ms < self._memory.hold_until_ms
        if holding or now_s - self._reaped_s < TICK_S:
            return
        self._reaped_s = now_s
        while True:
            reaped = await self._queue.reap(limit=REAP_BATCH)
            if reaped.returned or reaped.dropped:
                log.info("reaped returned=%d dropped=%d", reaped.returned, reaped.dropped)
            ended = await self._jobs.expire(REAP_BATCH)
            if ended:
                log.info("jobs expired or forgotten count=%d", ended)
            done = reaped.returned + reaped.dropped, reaped.jobs_returned + reaped.jobs_ended, ended
            if max(done) < REAP_BATCH:
                return

    def _redis_lost(self, error: QueueUnavailable) -> None:
        if self._memory.redis_lost:
            return
        log.warning("redis is away, nothing is decided until it is back error=%r", error.message)
        if self._view is not None:
            state = ControllerState(self._view, self._memory)
            self._memory = decide(state, RedisLost(), self._view.now_ms).state.memory
        else:
            self._memory = replace(self._memory, redis_lost=True)
