"""What the agent tells the fleet: heartbeats, progress of loads, and how long their phases took.

Nothing here fails when Redis is out of reach: what could not be told is told the next time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from fleet import FleetClient, Registry, Wakes
from rewarm.errors import QueueUnavailable
from rewarm.messages import PoolReport, Waiter, Wake, Want
from rewarm.states import ReplicaState, Tier
from rewarm.wakes import wake_of
from worker import beats, eta
from worker.replica import Replica
from worker.supervise import wait_set
from worker.surroundings import Surroundings

HEARTBEATS_TO_LIVE = 3
DURATIONS_KEPT = 8
_PROGRESS_EVERY_S = 0.25
_WAKES_UNTOLD = 200  # while Redis is away
_log = logging.getLogger("rewarm.worker.telling")


class Telling:
    """``replicas`` and ``strangers`` (wants to stop what is not here) are the agent's own, read at each heartbeat."""

    def __init__(
        self,
        surroundings: Surroundings,
        client: FleetClient,
        boot: str,
        replicas: Mapping[str, Replica],
        strangers: Mapping[str, Want],
        draining: Callable[[], bool],
        pools: Callable[[], Iterable[PoolReport]] = lambda: (),
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self._around = surroundings
        self._client = client
        self._registry = Registry(client)
        self._boot = boot
        # Of a pod its address: its name is cut to what a host name may be, and then no longer its own.
        self._host = (surroundings.config.worker.advertise if surroundings.only else None) or socket.gethostname()
        self._replicas = replicas
        self._strangers = strangers
        self._draining = draining
        self._pools = pools
        self._superseded = superseded
        self._since_ms = 0  # Redis time of our first heartbeat
        self._heard_at: float | None = None
        self._states: dict[str, ReplicaState] | None = None  # as last told
        self._ready: dict[str, asyncio.Event] = {}
        self._receipts = Wakes(client)
        self._wakes: list[Wake] = []  # not told yet
        self._waiters: list[tuple[Wake, Waiter]] = []

    async def beats(self) -> None:
        """At once when a state changes, else as often as configured."""
        every_s = self._around.config.worker.heartbeat.total_seconds()
        while True:
            await self._beat()
            await wait_set(self._around.changed, every_s)

    @property
    def heard(self) -> bool:
        """A heartbeat of this run has been written."""
        return self._heard_at is not None

    async def ready(self, replica: str) -> None:
        """Until a heartbeat has told that it is ready, with the phases of its load: gateways learn of them before the
        first grant, and can say in the answer what the cold start was made of."""
        await self._ready.setdefault(replica, asyncio.Event()).wait()

    async def progress(self) -> None:
        while True:
            loading = [replica for replica in self._replicas.values() if replica.life.loading]
            done = [r for r in self._replicas.values() if r.progress.ended_at is not None and not r.progress.told]
            for replica in (*loading, *done):
                await self._tell_progress(replica)
            for replica in done:
                replica.progress.told = True
                self._trace()
                wake = wake_of(self._around.worker, beats.report(replica, self._around.monotonic()))
                if wake is not None:
                    self._wakes.append(wake)
                await self._remember(replica)
            untold = await self._tell_wakes()
            if loading or untold:
                # Also where no report comes: the clock moves what an engine does not count.
                await wait_set(self._around.moved, _PROGRESS_EVERY_S)
            else:
                await self._around.moved.wait()
                self._around.moved.clear()

    async def _tell_wakes(self) -> bool:
        """Receipts of wakes and who waited for them; whether some could not be written now."""
        for replica in self._replicas.values():
            if replica.waiters and (wake := wake_of(self._around.worker, beats.report(replica, 0.0))) is not None:
                self._waiters += [(wake, waiter) for waiter in replica.waiters]
                replica.waiters.clear()
        del self._wakes[:-_WAKES_UNTOLD], self._waiters[:-_WAKES_UNTOLD]
        try:
            while self._wakes:
                await self._receipts.record(self._wakes[0])
                del self._wakes[0]
            if self._waiters:
                await self._receipts.waited(self._waiters)
                self._waiters.clear()
        except QueueUnavailable as error:
            _log.debug("event=wake-not-told error=%s", error)
            return True
        return False

    async def recall(self) -> None:
        """What earlier loads took on this machine, and how far our clock is from Redis's."""
        try:
            self._around.history = dict(await self._registry.history(self._around.worker))
        except QueueUnavailable as error:
            _log.warning("event=no-history error=%s", error)
        await self.read_clock()

    async def read_clock(self) -> None:
        before = self._around.monotonic()
        try:
            now_ms = await self._client.time_ms()
        except QueueUnavailable:
            return
        middle = (before + self._around.monotonic()) / 2
        self._around.redis_offset_ms = now_ms - middle * 1000

    async def leave(self) -> None:
        """The last thing a worker says: that it went on purpose, and is gone."""
        await self._beat()
        try:
            await self._registry.leave(self._around.worker, self._boot)
        except QueueUnavailable as error:
            _log.warning("event=leave-not-told error=%s", error)

    def _trace(self) -> None:
        """The spans of wakes that are over, before anybody hears of them: who waited links to them."""
        if self._around.tracing is None:
            return
        for replica in self._replicas.values():
            ended_at = replica.progress.ended_at
            if ended_at is not None and not replica.progress.traced:
                replica.progress.traced = True
                now = self._around.monotonic()
                wake = wake_of(self._around.worker, beats.report(replica, now))
                if wake is not None:
                    replica.trace = self._around.tracing.wake(wake, time.time_ns() - int((now - ended_at) * 1e9))

    async def _beat(self) -> None:
        self._trace()
        self._since_ms = self._since_ms or self._around.redis_ms()
        ttl_ms = int(self._around.config.worker.heartbeat.total_seconds() * 1000) * HEARTBEATS_TO_LIVE
        now = self._around.monotonic()
        reports = [beats.report(replica, now, self._around.redis_ms(now)) for replica in self._replicas.values()]
        reports += [beats.stopped(want) for name, want in self._strangers.items() if name not in self._replicas]
        readings = await self._around.watch.read()
        states = {report.replica: report.state for report in reports}
        message = beats.beat(
            self._around.worker,
            self._boot,
            self._host,
            os.getpid(),
            self._around.ledgers.reports(readings),
            reports,
            draining=self._draining(),
            pools=self._pools(),
            only=self._around.only,
            since_ms=self._since_ms,
        )
        try:
            if not await self._registry.beat(message, ttl_ms=ttl_ms, ring=states != self._states):
                # Said only after a while: a restart on a Redis whose clock was set back is not heard for a moment.
                if now - (self._heard_at or now) > 2 * ttl_ms / 1000:
                    self._superseded()
                return
            self._heard_at = now
            self._states = states
            self._ready = {name: event for name, event in self._ready.items() if name in self._replicas}
            for name, state in states.items():
                if state is ReplicaState.READY:
                    self._ready.setdefault(name, asyncio.Event()).set()
        except QueueUnavailable as error:
            _log.debug("event=no-heartbeat error=%s", error)

    async def _tell_progress(self, replica: Replica) -> None:
        now = self._around.monotonic()
        if not replica.progress.due(now):
            return
        try:
            await self._registry.load_progress(replica.progress.snapshot(now, self._around.redis_ms(now)))
        except QueueUnavailable as error:
            _log.debug("event=progress-not-told error=%s", error)
            return
        replica.progress.published(now)

    async def _remember(self, replica: Replica) -> None:
        """A wake is done: its phases' durations, for the next one's ETA."""
        around, tier, progress = self._around, replica.tier, replica.progress
        took = {timing.phase.value: timing.duration_s for timing in progress.timings}
        known = {name for model, of, name in around.history if (model, of) == (replica.model, tier.value)}
        took |= eta.left_out(took, known)
        took |= {eta.step_name(step): round(seconds, 4) for step, seconds in progress.steps.items()}
        for timing in progress.timings:
            read = timing.phase is ReplicaState.RESTORING and timing.bytes and timing.duration_s > 0.05
            if read and tier is Tier.COLD and replica.weights in ("", "source"):
                around.bandwidths = (*around.bandwidths[1 - DURATIONS_KEPT :], timing.bytes / timing.duration_s)
        for name, seconds in took.items():
            key = (replica.model, tier.value, name)
            around.history[key] = (*around.history.get(key, ())[1 - DURATIONS_KEPT :], seconds)
        try:
            await self._registry.record_history(around.worker, replica.model, tier, took)
        except QueueUnavailable as error:
            _log.debug("event=history-not-kept error=%s", error)
