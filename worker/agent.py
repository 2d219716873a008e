"""The agent: one per machine (and worker name). Makes what the leader wants so, and says how things are.

Loops, each supervised: hints (the bell), wants, heartbeat, progress, upkeep, renewals of jobs' leases, pools of
pre-warmed processes; one task per replica, one per job. While Redis is out
of reach everything that runs keeps running: nothing is claimed, nothing is stopped, and all is told again when it is
back.
"""

from __future__ import annotations

import asyncio
import logging
import os

from fleet import Bell, FleetClient, Hint, JobLimits, Jobs, Lost, Queue, Reconnected, Registry
from rewarm.config import catalogue
from rewarm.errors import QueueUnavailable
from rewarm.heap import give_back_unused
from rewarm.ids import boot_id
from rewarm.messages import Want
from rewarm.states import FailureReason
from worker import containment, lifecycle
from worker.enginelog import rotate
from worker.granter import Granter
from worker.jobs import JobRunner, RemoteJobs
from worker.place import PlaceServer
from worker.pool.keeping import Pools
from worker.reconcile import Abandon, Accept, Forget, Known, Start, Step, Stop, Tell, reconcile
from worker.replica import Replica
from worker.supervise import supervised, wait_set
from worker.surroundings import Surroundings
from worker.telling import Telling

WANTS_EVERY_S = 2.0
UPKEEP_EVERY_S = 5.0
CLOCK_EVERY_S = 30.0
CATALOGUE_EVERY_S = 3.0
_KILL_MARGIN_S = 30.0  # beyond the shutdown's deadline: engines that must be killed, memory that must come back
_JOBS_BACK_BEFORE_S = 1.0  # the shutdown's deadline: what still runs goes back to its place while it can be said
_JOBS_END_WITHIN_S = 5.0
_log = logging.getLogger("rewarm.worker.agent")


class Agent:
    def __init__(self, surroundings: Surroundings, client: FleetClient) -> None:
        self._around = surroundings
        self._client = client
        self._queue = Queue(client)
        self._registry = Registry(client)
        self._replicas: dict[str, Replica] = {}
        self._granters: dict[str, Granter] = {}
        self._unwanted_since: dict[str, float] = {}
        self._strangers: dict[str, Want] = {}  # asked to stop, not here
        self._look = asyncio.Event()  # at the wants
        self._tasks: asyncio.TaskGroup | None = None
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._online = True
        self._draining = asyncio.Event()
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._boot = boot_id("worker")
        self.place = PlaceServer(self)
        self.drained = asyncio.Event()
        self._let_go = True  # nothing has run since the pod was last let go
        limits = JobLimits(max_result=surroundings.config.jobs.max_result)
        self._jobs = JobRunner(Jobs(client, limits), surroundings.pool, self._boot)
        self._remote = RemoteJobs(self._queue, self._jobs, surroundings.worker, self, os.environ)
        self._pools = Pools(surroundings, self._loading)
        surroundings.starter = self._pools.starter
        self._telling = Telling(
            surroundings,
            client,
            self._boot,
            self._replicas,
            self._strangers,
            self._draining.is_set,
            self._pools.reports,
            self._superseded,
        )

    @property
    def may_claim(self) -> bool:
        return self._online and not self._draining.is_set()

    @property
    def heard(self) -> bool:
        return self._telling.heard and not self._draining.is_set()

    def drain(self) -> None:
        """Take nothing new and let what runs end; go on until stopped."""
        self._draining.set()

    def stop(self) -> None:
        """Drain, then stop. The second call does not wait for what runs."""
        (self._at_once if self._stopping.is_set() else self._stopping).set()
        self._draining.set()

    def _superseded(self) -> None:
        """A later run has our name. In a cluster that is the next pod of this place, and we are on our way out."""
        if self._around.only and not self._draining.is_set():
            _log.warning("event=superseded worker=%s: its next pod has come, draining", self._around.worker)
            self.drain()
        elif not self._around.only:
            _log.error("event=name-taken worker=%s: another worker of this name runs elsewhere", self._around.worker)

    async def run(self) -> None:
        await self._telling.recall()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            loops = [
                tasks.create_task(supervised(name, body), name=name)
                for name, body in (
                    ("hints", self._hints),
                    ("wants", self._wants),
                    ("beat", self._telling.beats),
                    ("progress", self._telling.progress),
                    ("upkeep", self._upkeep),
                    ("pools", self._pools.run),
                    ("catalogue", self._catalogue),
                    ("job renewals", self._jobs.renewals),
                    ("remote jobs", self._remote.run),
                )
            ]
            _log.info("event=worker-runs worker=%s boot=%s", self._around.worker, self._boot)
            await self._draining.wait()
            await self._shut_down()
            await self._jobs.close(_JOBS_END_WITHIN_S)  # their leases are renewed until then
            self.drained.set()
            await self._stopping.wait()
            for task in loops:
                task.cancel()
            await asyncio.wait(loops)
            await self._remote.close()
        await self._telling.leave()
        _log.info("event=worker-stopped worker=%s", self._around.worker)

    # -- loops

    async def _hints(self) -> None:
        async for event in Bell(self._client).listen():
            match event:
                case Hint(reason="enqueue" | "reap" as reason, model=model):
                    self._poke(model if reason == "enqueue" else "")
                case Hint(reason="want"):
                    self._look.set()
                case Hint(reason="cancel"):
                    self._jobs.look()
                case Lost():
                    self._set_online(False)
                case Reconnected(empty=empty):
                    _log.warning("event=redis-back empty=%s", empty)
                    self._unwanted_since.clear()  # a fresh leader first has to hear of them
                    self._set_online(True)
                    self._jobs.look()  # before their leases count as expired
                case _:
                    pass

    async def _wants(self) -> None:
        while True:
            if self._online:
                try:
                    self._carry_out(await self._registry.wants(self._around.worker))
                except QueueUnavailable as error:
                    _log.debug("event=wants-not-read error=%s", error)
            await wait_set(self._look, WANTS_EVERY_S)

    async def _catalogue(self) -> None:
        """The models that may be asked of this worker, for its pools and for jobs that run elsewhere. Until the fleet's
        are heard: its own."""
        models = catalogue(self._around.config)
        while True:
            if self._online:
                try:
                    models = await self._registry.catalogue() or models
                except QueueUnavailable as error:
                    _log.debug("event=catalogue-not-read error=%s", error)
            await self._remote.register(models)
            only = self._around.only
            await self._pools.register({m: e.spec for m, e in models.items() if e.placed and only in ("", m)})
            await asyncio.sleep(CATALOGUE_EVERY_S)

    async def _upkeep(self) -> None:
        """Memory in use and memory unused, log sizes, zombies of orphans, the distance to Redis's clock."""
        clock_at = self._around.monotonic()
        zombies: frozenset[int] = frozenset()
        while True:
            await self._around.watch.read()
            self._look_for_lost_devices()
            for replica in list(self._replicas.values()):
                await replica.measure()
                rotate(self._around.paths.engine_log(replica.model))
            await self._pools.measure()
            give_back_unused()
            zombies = containment.reap_orphans(self._children(), zombies)
            if self._around.monotonic() - clock_at > CLOCK_EVERY_S and self._online:
                clock_at = self._around.monotonic()
                await self._telling.read_clock()
            await asyncio.sleep(UPKEEP_EVERY_S)

    def _look_for_lost_devices(self) -> None:
        """What had memory there has lost it; all others go on."""
        ledgers = self._around.ledgers
        for name, key in ledgers.on_lost().items():
            if name in self._replicas:
                message = f"{ledgers.devices[key].label} is lost: {ledgers.lost[key]}"
                self._replicas[name].feed(lifecycle.Faulted(FailureReason.DEVICE_LOST, message))

    # -- wants

    def _carry_out(self, wants: list[Want]) -> None:
        self._strangers.clear()
        wants = [want for want in wants if want.boot in ("", self._boot) and want.not_boot != self._boot]
        for step in reconcile(wants, self._known({want.replica for want in wants}), draining=self._draining.is_set()):
            self._take(step)
        if self._replicas:
            self._let_go = False
        elif not wants and not self._let_go:
            self._let_go = True
            self.place.release()

    def _take(self, step: Step) -> None:
        assert self._tasks is not None
        match step:
            case Start(want):
                _log.info(
                    "event=start replica=%s model=%s attempt=%d term=%d %s",
                    *(want.replica, want.model, want.attempt, want.term, want.reason),
                )
                replica = self._replicas[want.replica] = self._new(want)
                self._lives[replica.id] = self._tasks.create_task(self._live(replica), name=f"replica {replica.id}")
                self._around.changed.set()
            case Accept(want):
                replica = self._replicas[want.replica]
                yielded = replica.yielding
                replica.accept(want)
                if replica.yielding is not yielded and want.replica in self._granters:
                    self._granters[want.replica].poke()
            case Stop(want):
                replica = self._replicas[want.replica]
                replica.want = want
                self._tasks.create_task(replica.stop(want), name=f"stop {want.replica}")
            case Abandon(name):
                self._replicas[name].feed(lifecycle.WantedStopped("no want names it any more"))
            case Forget(name):
                self._replicas.pop(name, None)
                self._around.changed.set()
            case Tell(want):
                self._strangers[want.replica] = want

    def _known(self, wanted: set[str]) -> dict[str, Known]:
        now = self._around.monotonic()
        out = {}
        for name, replica in self._replicas.items():
            since = now if name in wanted else self._unwanted_since.get(name, now)
            self._unwanted_since[name] = since
            life = replica.life
            # Not gone before its task is: that one still cleans up under the same names.
            gone = life.gone and name not in self._lives
            out[name] = Known(replica.want.term, replica.attempt, life.state, gone, now - since)
        for name in self._unwanted_since.keys() - self._replicas.keys():
            del self._unwanted_since[name]
        return out

    def _new(self, want: Want) -> Replica:
        return Replica(
            want,
            self._around,
            room_is_coming=lambda: self._room_is_coming(want.replica),
            on_free=lambda: self._slot_freed(want.replica),
        )

    async def _live(self, replica: Replica) -> None:
        granter = self._granters[replica.id] = Granter(replica, self._queue, self._around.worker, self, self._jobs)
        try:
            async with asyncio.TaskGroup() as tasks:
                granting = tasks.create_task(self._grants(replica, granter))
                await replica.run()
                granting.cancel()
        except Exception:  # noqa: BLE001  # one replica's end must not end the others
            _log.exception("event=replica-task-failed replica=%s", replica.id)
        finally:
            self._granters.pop(replica.id, None)
            self._lives.pop(replica.id, None)
            self._look.set()

    async def _grants(self, replica: Replica, granter: Granter) -> None:
        await self._telling.ready(replica.id)
        await supervised(f"grants {replica.id}", granter.run)

    def _room_is_coming(self, replica: str) -> bool:
        return any(
            other.life.stage in (lifecycle.Stage.WAITING, lifecycle.Stage.TERMINATING, lifecycle.Stage.KILLING)
            for name, other in self._replicas.items()
            if name != replica
        )

    def _loading(self) -> bool:
        return any(replica.takes_processor for replica in self._replicas.values())

    def _slot_freed(self, replica: str) -> None:
        granter = self._granters.get(replica)
        if granter is not None:
            granter.slot_freed()

    def _poke(self, model: str) -> None:
        self._remote.poke()
        for name, granter in self._granters.items():
            if not model or self._replicas[name].model == model:
                granter.poke()

    # -- Redis

    def _set_online(self, online: bool) -> None:
        self._online = online
        self._around.changed.set()
        self._look.set()
        self._poke("")

    # -- the end

    async def _shut_down(self) -> None:
        deadline_s = self._around.config.worker.shutdown_deadline.total_seconds()
        _log.info("event=shutdown replicas=%d deadline_s=%g", len(self._replicas), deadline_s)
        self._around.changed.set()
        for replica in self._replicas.values():
            replica.feed(lifecycle.WantedStopped("the worker stops", drain_deadline_s=deadline_s))
        loop = asyncio.get_running_loop()
        jobs_until = loop.time() + max(0.0, deadline_s - _JOBS_BACK_BEFORE_S)
        until = loop.time() + deadline_s + _KILL_MARGIN_S
        hurried = False
        while self._busy and loop.time() < until:
            if self._at_once.is_set() and not hurried:
                hurried = True
                self._jobs.give_back("its worker stops")
                for replica in self._replicas.values():
                    replica.feed(lifecycle.WantedStopped("the worker stops now", now_or_never=True))
            if loop.time() >= jobs_until:
                self._jobs.give_back("its worker stops")
            await asyncio.sleep(0.05)
        for life in list(self._lives.values()):
            if loop.time() >= until:
                life.cancel()  # whose end kills once more
        if self._lives:
            await asyncio.wait(self._lives.values())

    @property
    def _busy(self) -> bool:
        """Replicas of it are not gone yet, or jobs run at somebody else's."""
        return bool(self._remote.running) or any(not replica.life.gone for replica in self._replicas.values())

    def _children(self) -> set[int]:
        """Processes that the event loop waits for itself."""
        pids = {replica.pid for replica in self._replicas.values() if replica.pid is not None}
        return pids | self._pools.children
