"""One replica at the edge: feeds what happens to the state machine (:mod:`worker.lifecycle`) and does what it answers.

``run`` lives from the want to the verified end of all processes. Everything that happens (reports, exits, wants, the
clock) goes through :meth:`Replica.feed`; nothing else changes the state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from rewarm.errors import AdapterLoadFailed
from rewarm.jobs import JobLease
from rewarm.messages import Failure, ReplicaSpec, Waiter, Want
from rewarm.pending import usual_of
from rewarm.states import LOAD_PHASES, FailureReason, ReplicaState, Tier
from rewarm.upstream import UpstreamPool
from snapshots import Progress
from worker import eta, lifecycle
from worker.devices.device import RAM
from worker.engines.estimate import Estimate
from worker.fetching import fetched
from worker.gate.control import GateControl, GateUnreachable
from worker.hosted import Hosted
from worker.jobs import Broke, Door, End, GateDoor, Refused
from worker.launch import CannotStart, Files, admitted, estimated, new_token
from worker.lifecycle import Action, Life, Limits, Stage
from worker.limits.watchdog import LOOK_EVERY_S
from worker.progress import LoadProgress
from worker.report import (
    AdaptersReport,
    BytesReport,
    FailedReport,
    GateReport,
    GateState,
    HelloReport,
    LoadedReport,
    NoteReport,
    PhaseReport,
    ReadyReport,
    Report,
    Rest,
    TimingReport,
    serve_reports,
)
from worker.sleeping import Sleeping
from worker.supervise import wait_set
from worker.surroundings import Surroundings

S = ReplicaState

_TICK_S = 0.1
_GATE_CHECK_S = 5.0
_LAST_WORDS_S = 0.5
_log = logging.getLogger("rewarm.worker.replica")


class Replica:
    """``want`` is the newest accepted one. ``siblings`` says whether memory of another replica of the agent is coming
    back; ``on_free`` is called when slots may have become free, ``on_ready`` when the gate opens."""

    def __init__(
        self,
        want: Want,
        surroundings: Surroundings,
        *,
        room_is_coming: Callable[[], bool] = lambda: False,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        self.want = want
        self.attempt = want.attempt
        self.spec_hash = want.spec_hash
        self._around = surroundings
        self._room_is_coming = room_is_coming
        self._on_free = on_free
        now = surroundings.monotonic()
        self.life = Life(_limits(want), since=now, moved_at=now)
        self.progress = LoadProgress(want.model, want.replica, want.attempt, {}, started_at=now)
        if surroundings.only and not want.boot and want.wanted_ms:  # no worker was here when it was decided
            came_s = (surroundings.redis_ms(now) - max(want.wanted_ms, want.not_before_ms)) / 1000
            self.progress.pod_came(max(0.0, came_s), usual_of(surroundings.history, want.model))
        self.need = Estimate(0)
        self.needs: Mapping[str, int] = {}  # bytes by device, once they are promised to it
        self.gate: GateState | None = None
        self.endpoint: str | None = None
        self.failure: Failure | None = None
        self.ready_at_ms = 0
        self.numbers: dict[str, float] = {}
        self.weights = ""
        # Of the specification that it was started with: name → why it does not serve it, empty where it does.
        self.adapters = {one.name: "" for one in want.spec.adapters}
        self.tier = Tier.COLD  # what this wake starts from: set it before the first phase, see `expect`
        self.tier_reason = ""
        self.cause = want.reason  # what it was woken for
        self.trace = ""  # of this wake, where traces are sent
        self.waiters: list[Waiter] = []  # jobs that waited for this wake, not told yet
        self._activity: tuple[float, int] = (-1.0, 0)  # the gate's clock, and the same moment in Redis time
        self._files = Files.of(surroundings, want.replica, want.model)
        self._token = new_token()
        self.control = GateControl(surroundings.pool, self._files.gate, self._token)
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._hosted = Hosted(want.replica, surroundings.marker, self._files)
        self._starting: asyncio.Task[None] | None = None
        self._sleeping = Sleeping(want.replica, surroundings, self.control)
        self._wakes = 0  # of its gate, as far as they were taken note of
        self._used: dict[str, int] = {}  # bytes by device, as last measured
        self._measure_now = False  # it has just fallen asleep
        self._waits_for_room = False
        self._backs_off = False  # until its next attempt
        self._attend = asyncio.Event()  # to a want, before the next tick
        self._heard_at = now

    # -- what others see

    @property
    def id(self) -> str:
        return self.want.replica

    @property
    def model(self) -> str:
        return self.want.model

    @property
    def pid(self) -> int | None:
        return self._hosted.pid

    @property
    def serving(self) -> bool:
        return self.life.state is S.READY and self.endpoint is not None

    @property
    def yielding(self) -> bool:
        """It is to sleep although it is in use, because another model needs the memory."""
        return self.life.state is S.READY and self.want.state is S.ASLEEP and not self.want.may_wake

    def enter(self, pool: UpstreamPool) -> Door:
        """By its gate's unix socket: the agent's own way in, wherever gateways come in."""
        return GateDoor(pool, f"unix:{self._files.gate}")

    async def slot(self) -> str | None:
        """A grant of its own gate; None while there is none to be had. Raise GateUnreachable."""
        grants, _ = await self.control.reserve(1)
        return grants[0] if grants else None

    @property
    def slots(self) -> int:
        return self.want.spec.slots

    def refuses(self, model: str) -> End | None:
        """Of a job for ``model``, an adapter: why it is not run here."""
        why = self.adapters.get(model)
        if why is None:
            return Refused(f"it was started without {model!r}")  # a replica of the new specification is coming
        return Broke(AdapterLoadFailed.code, why) if why else None

    @property
    def answer_stall_s(self) -> float:
        return self.want.spec.answer_stall_s

    @property
    def leaving(self) -> bool:
        """It was told to stop: its engine's end is no fault of what it runs."""
        return self.life.state in (S.DRAINING, S.STOPPED)

    @property
    def last_activity_ms(self) -> int:
        """In Redis time. Converted once per value: the leader compares for equality."""
        return self._activity[1]

    @property
    def memory_bytes(self) -> int:
        """Of its GPUs as far as the driver tells; in RAM (PSS) where it has none."""
        gpus = [key for key in self.needs if key != RAM]
        return sum(self._used.get(key, 0) for key in gpus) if gpus else self._hosted.memory_bytes

    @property
    def waits_for_room(self) -> bool:
        return self._waits_for_room or self._sleeping.waits_for_room

    @property
    def takes_processor(self) -> bool:
        """For its load, or will in a moment: not while it waits for its next attempt or for a download."""
        return self.life.loading and not self._backs_off and self.life.state is not S.FETCHING

    # -- what happens to it

    def feed(self, event: lifecycle.Event, at_s: float | None = None) -> None:
        before = self.life
        now = self._around.monotonic() if at_s is None else at_s
        self.life, actions = lifecycle.step(self.life, event, now)
        if self.life.state is not before.state:
            self._entered(before, now)
        for action in actions:
            if action is Action.PUBLISH:
                self._around.changed.set()
            else:
                self._actions.put_nowait(action)

    def accept(self, want: Want) -> None:
        """The leader wants it ready, or asleep once it is idle."""
        self.want = want
        self._attend.set()
        if want.state is S.READY:
            self.feed(lifecycle.WantedReady())

    async def stop(self, want: Want) -> None:
        """The leader wants it stopped; an idle stop only if nothing happened since the activity that the leader saw."""
        if self.life.state in (S.DRAINING, S.STOPPED, S.FAILED):
            return
        if want.if_last_activity_ms is not None and self.life.state in (S.READY, S.ASLEEP):
            if not await self._still_idle(want.if_last_activity_ms):
                return
        self.feed(lifecycle.WantedStopped(want.reason))

    async def _still_idle(self, seen_ms: int) -> bool:
        raw, known_ms = self._activity
        if known_ms != seen_ms:
            return False
        try:
            state = await self.control.drain(if_last_activity_s=raw)
        except GateUnreachable as error:
            _log.warning("event=idle-stop-not-possible replica=%s error=%s", self.id, error)
            return False
        self._take_gate(state)
        return state.draining

    # -- its life

    async def run(self) -> None:
        """Until nothing of it is left. Its memory has been given back then, and its files are gone."""
        try:
            async with serve_reports(self._files.report, self._report) as silent, asyncio.TaskGroup() as tasks:
                self._starting = tasks.create_task(self._start(silent))
                watch = tasks.create_task(self._watch())
                await self._act()
                watch.cancel()
                self._starting.cancel()
        except* Exception as errors:  # noqa: BLE001  # our mistakes must not leave processes, nor the leader in doubt
            _log.exception("event=replica-crashed replica=%s", self.id)
            self.feed(lifecycle.Faulted(FailureReason.AGENT_LOST, f"error in the worker: {errors.exceptions[0]!r}"))
        finally:
            while not self.life.gone:
                await self._end()
            self._files.remove()
            await self._hosted.end_pace(self._around)
            self._around.loads.running.pop(self.id, None)
            self._around.ledgers.drop(self.id)
            self._around.lenders.pop(self.id, None)
            await self._around.device.release(self.id)
            self._around.room.set()
            self._around.changed.set()

    async def _end(self) -> None:
        """All of it, after a mistake of ours. Until then its memory is promised to nobody else."""
        try:
            ended = await self._hosted.kill()
        except OSError as error:  # no descriptors to look for its processes with
            _log.error("event=not-ended replica=%s error=%s", self.id, error)
            ended = False
        if ended:
            self._around.ledgers.drop(self.id)
            self.feed(lifecycle.Emptied())
        else:
            await asyncio.sleep(lifecycle.KILL_EVERY_S)

    async def _start(self, silent: asyncio.Event) -> None:
        try:
            await self._backoff()
            want = replace(self.want, spec=await self._fetched(self.want.spec))
            self.need = await estimated(want.spec, self._around)
            self.expect(self.tier, self.tier_reason)
            self.needs = await admitted(self._around, want, self.need, self._room_is_coming, self._wait_for_room)
            self._waits_for_room = False
            launched = await self._hosted.start(self._around, want, self.need, self.needs, self._token)
            self.expect(launched.tier, launched.why)
        except CannotStart as error:
            self.feed(error.fault)
            return
        self.feed(lifecycle.Spawned())
        status = await self._hosted.wait()
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await silent.wait()  # what it said before it ended explains more than its status
        except TimeoutError:
            pass  # some other process of it still holds the channel
        self.feed(lifecycle.HostExited(self._hosted.explain(status, self.life.state)))

    async def _fetched(self, spec: ReplicaSpec) -> ReplicaSpec:
        """Raise CannotStart."""

        def report(progress: Progress | None, words: str) -> None:
            fraction = progress.fraction if progress is not None and progress.phase == "downloading" else 0.0
            if progress is None or self.life.state is S.COLD:
                self._report(PhaseReport(phase=S.FETCHING, fraction=fraction, message=words))
            if progress is not None:
                self._say(words)
                self.progress.fetch(progress.done_bytes, progress.total_bytes, self._around.monotonic())
                self.feed(lifecycle.Moved())
                self._around.moved.set()

        def here(event: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(event)

        loop = asyncio.get_running_loop()
        floor = self._around.config.snapshots.floor
        return await fetched(
            spec,
            floor,
            lambda progress, words: here(partial(report, progress, words)),
            lambda: here(partial(self.feed, lifecycle.Moved())),
        )

    def _wait_for_room(self, words: str) -> None:
        if not self._waits_for_room:
            self._waits_for_room = True
            self._around.changed.set()  # the leader makes room
        self._say(words)

    async def _backoff(self) -> None:
        while (left_ms := self.want.not_before_ms - self._around.redis_ms()) > 0:
            self._backs_off = True
            self._say(f"waiting {left_ms / 1000:.1f} s before attempt {self.attempt}")
            await asyncio.sleep(min(1.0, left_ms / 1000))
        self._backs_off = False

    async def _act(self) -> None:
        """Carry out the machine's actions, in order, until all is gone."""
        while not self.life.gone:
            action = await self._actions.get()
            try:
                await self._do(action)
            except GateUnreachable as error:
                # The gate's host will be found dead, or stalled; a drain ends by its deadline in any case.
                _log.warning("event=gate-unreachable replica=%s action=%s error=%s", self.id, action.value, error)
            except OSError as error:  # no descriptors left: what is to end is ended by the next tick
                _log.error("event=not-done replica=%s action=%s error=%s", self.id, action.value, error)

    async def _do(self, action: Action) -> None:
        match action:
            case Action.CLOSE_GATE:
                self._take_gate(await self.control.drain())
            case Action.OPEN_GATE:
                self._take_gate(await self.control.undrain())
            case Action.TERMINATE:
                self._around.room.set()  # those who wait for memory know now that some is coming
                await self._hosted.terminate()
            case Action.KILL:
                await self._kill()

    async def _kill(self) -> None:
        if self.pid is None and self._starting is not None:
            self._starting.cancel()
            await asyncio.wait((self._starting,))
        self._around.room.set()
        if await self._hosted.kill():  # else the next tick kills again
            # Before it is said that it has stopped: a heartbeat between the two would show neither it nor its memory,
            # and the leader would make somebody else leave for whoever waits for that.
            self._around.ledgers.drop(self.id)
            self.feed(lifecycle.Emptied())

    async def _watch(self) -> None:
        """The clock, and the gate's pulse while ready: its host may be stopped or stuck without having ended."""
        checked_at = limits_at = self._around.monotonic()
        while True:
            await wait_set(self._attend, _TICK_S)
            self.feed(lifecycle.Tick())
            now = self._around.monotonic()
            self.progress.look(now)
            try:
                if now - limits_at >= LOOK_EVERY_S:
                    limits_at = now
                    await self._look_at_limits()
                    await self._look_at_pace()
                if self._measure_now:
                    self._measure_now = False
                    await self.measure()
                    self._around.changed.set()
            except OSError as error:  # no descriptors to read /proc with: no reason to end what serves
                _log.error("event=not-measured replica=%s error=%s", self.id, error)
            waiting = self.life.stage is Stage.WAITING
            if waiting and self.gate is not None and self.gate.draining and self.gate.quiet:
                self.feed(lifecycle.Quiet())
            await self._rest_or_wake()
            every = 1.0 if waiting else min(_GATE_CHECK_S, self.want.spec.answer_stall_s / 4)
            if self.life.state in (S.READY, S.ASLEEP, S.DRAINING) and self.life.stage in (Stage.NONE, Stage.WAITING):
                if now - checked_at >= every:
                    await self._check_gate()
                    checked_at = self._around.monotonic()
            else:
                checked_at = self._heard_at = now

    async def _look_at_limits(self) -> None:
        if self.life.stage is Stage.NONE and await self._hosted.over_limit():
            assert self._hosted.confinement is not None
            message = f"it takes {self._hosted.confinement.words}"
            self.feed(lifecycle.Faulted(FailureReason.MEMORY_LIMIT, message))

    async def _look_at_pace(self) -> None:
        if self.life.loading and not self.life.woken:
            pace = await self._hosted.look_at_pace(self._around, waited_for=self.want.waited_for)
            if pace.held_back:
                self.feed(lifecycle.Moved())  # it has not stalled
                self._say(f"held back to {pace.share:.0%} of full speed: {pace.reason}")
        else:
            await self._hosted.end_pace(self._around)

    async def _rest_or_wake(self) -> None:
        """What the want says, and neither the gate nor a lack of memory is against."""
        want, state = self.want, self.life.state
        try:
            if state is S.READY and want.state is S.ASLEEP and want.if_ready_at_ms == self.ready_at_ms:
                raw, known_ms = self._activity
                seen_ms = want.if_last_activity_ms
                idle = self.gate is not None and self.gate.quiet and self.gate.rest is Rest.AWAKE
                if idle and (seen_ms is None or seen_ms == known_ms):
                    known_s = None if seen_ms is None else raw
                    self._take_gate(await self._sleeping.fall(want.sleep_level, known_s, may_wake=want.may_wake))
            elif state is S.ASLEEP and want.state is S.READY and self.life.stage is Stage.NONE:
                self.cause = want.reason
                gate = await self._sleeping.wake(self.needs, self.need.arithmetic)
                if gate is not None:
                    self._take_gate(gate)
        except GateUnreachable as error:
            _log.warning("event=not-rested replica=%s error=%s", self.id, error)

    async def _check_gate(self) -> None:
        try:
            closed = self.life.stage is Stage.WAITING and not (self.gate is not None and self.gate.draining)
            state = await (self.control.drain() if closed else self.control.state())
            self._take_gate(state)
        except GateUnreachable as error:
            silent_s = self._around.monotonic() - self._heard_at
            if silent_s >= self.want.spec.answer_stall_s:
                message = f"the engine's host has not answered for {silent_s:.0f} s: {error}"
                self.feed(lifecycle.Faulted(FailureReason.STALLED, message))

    # -- reports

    def _report(self, report: Report) -> None:
        now = self._around.monotonic()
        match report:
            case PhaseReport(phase=phase, fraction=fraction, message=message):
                self.feed(lifecycle.Entered(phase, message))
                if self.life.state is phase:
                    self.progress.enter(phase, now, message)
                    self.progress.report(fraction, now, message)
                    self._around.moved.set()
            case BytesReport(done=done, total=total):
                if self.progress.read(done, total, now):
                    self.feed(lifecycle.Moved())
                    self._around.moved.set()
            case ReadyReport(endpoint=endpoint, answer=answer):
                self.endpoint = endpoint
                _log.info("event=verified replica=%s answer=%r", self.id, answer[:200])
                if self.want.spec.verify:
                    self._hosted.proved(self.weights)
                self.feed(lifecycle.BecameReady())
            case GateReport(gate=gate):
                self._take_gate(gate)
            case FailedReport(reason=reason, message=message, exit_status=status):
                self.feed(self._hosted.judge(lifecycle.Faulted(reason, message, status), self.life.state))
            case NoteReport(numbers=numbers):
                self.numbers |= numbers
            case LoadedReport(weights=weights, seconds=seconds):
                self.weights = weights
                _log.info("event=loaded replica=%s weights=%s seconds=%.3f", self.id, weights, seconds)
            case AdaptersReport(broken=broken):
                self.adapters |= broken
                for name, why in broken.items():
                    _log.error("event=adapter-left-out replica=%s adapter=%s why=%r", self.id, name, why)
            case TimingReport(first=first, gaps=gaps):
                self._around.loads.samples.add(self.model, "first", first, now)
                self._around.loads.samples.add(self.model, "gap", gaps, now)
            case HelloReport():
                pass

    def _take_gate(self, gate: GateState) -> None:
        before, self.gate = self.gate, gate
        self._around.loads.running[self.id] = gate.running
        self._heard_at = self._around.monotonic()
        if gate.last_activity_s != self._activity[0]:
            self._activity = (gate.last_activity_s, self._around.redis_ms(gate.last_activity_s))
        if before is None or gate.free > before.free:
            self._on_free()
        self._take_rest(gate)
        if self.life.stage is Stage.WAITING and gate.draining and gate.quiet:
            self.feed(lifecycle.Quiet())

    def _take_rest(self, gate: GateState) -> None:
        """A report may stand for several: of a wake that was over before it was told."""
        woke = gate.wakes > self._wakes
        if self.life.state is S.ASLEEP and (woke or gate.rest is Rest.WAKING):
            if self.want.state is not S.READY:
                self.cause = "a request came to it"
            self.expect(Tier.ASLEEP)
            self._sleeping.settle(self.needs, self._used, asleep=False)
            self.feed(lifecycle.Waking(), gate.wake_began_s)
        if woke:
            self._wakes = gate.wakes
            if self.life.woken and (self.life.loading or self.life.state is S.DRAINING):
                self.feed(lifecycle.BecameReady(), gate.wake_ended_s)
        if gate.rest is Rest.ASLEEP:
            if self.life.state is S.READY:
                self._measure_now = True
                self._attend.set()
            self.feed(lifecycle.Slept())

    # -- inside

    def _entered(self, before: Life, now: float) -> None:
        state, life = self.life.state, self.life
        why = f" {life.reason}" if life.reason else ""
        _log.info("event=state replica=%s from=%s to=%s%s", self.id, before.state.value, state.value, why)
        if state in LOAD_PHASES:
            self.progress.enter(state, now, life.note)
            self._around.moved.set()
        elif state is S.READY and before.loading:
            self.progress.end(now)
            self.ready_at_ms = self._around.redis_ms()
            self._around.moved.set()
            self._on_free()
        elif state is S.FAILED and life.fault is not None:
            self.failure = Failure(
                reason=life.fault.reason,
                message=life.fault.message,
                phase=life.fault.phase,
                attempt=self.attempt,
                at_ms=self._around.redis_ms(),
                exit_status=life.fault.exit_status,
                log_tail=self._hosted.tail(),
            )
            self.endpoint = None
            _log.error(
                "event=failed replica=%s phase=%s reason=%s message=%s",
                *(self.id, life.fault.phase.value, life.fault.reason.value, life.fault.message),
            )

    def expect(self, tier: Tier, reason: str = "") -> None:
        """A wake begins, or has turned out to start from another tier: what it will take. ``reason`` says why the tier
        is no better one."""
        if self.progress.ended_at is not None:
            self.progress = self.progress.again(self._around.monotonic())
            self.trace = ""
        self.tier, self.tier_reason = tier, reason
        known = {
            name: seconds
            for (model, of, name), seconds in self._around.history.items()
            if (model, of) == (self.model, tier.value)
        }
        phases = {phase: known[phase.value] for phase in LOAD_PHASES if phase.value in known}
        spec, around = self.want.spec, self._around
        self.progress.expected = eta.expected_s(spec.engine, self.need.read_bytes, around.bandwidth, phases, tier)
        self.progress.usual_steps = eta.usual_steps(known)
        if tier is not Tier.ASLEEP:
            self.progress.bytes_total = max(self.progress.bytes_total, self.need.read_bytes)
        self._around.moved.set()

    def job_taken(self, lease: JobLease) -> None:
        """A job got a slot; one that is older than the wake waited for it."""
        if lease.created_ms < self.ready_at_ms:
            waited_s = round((self._around.redis_ms() - lease.created_ms) / 1000, 3)
            self.waiters.append(Waiter(id=lease.spec.id, tenant=lease.spec.tenant, waited_s=waited_s))
            self._around.moved.set()

    def _say(self, words: str) -> None:
        self.progress.message = words
        self._around.moved.set()

    async def measure(self) -> None:
        """Memory now, into the ledger."""
        if not self.life.gone:
            await self._hosted.measure()
            self._used = {RAM: self._hosted.memory_bytes}
            if len(self.needs) > 1:
                self._used |= await self._around.watch.used_by(await self._hosted.pids())
            asleep = self.life.state is S.ASLEEP
            self._sleeping.settle(self.needs, self._used, asleep=asleep)
            if asleep and self.want.may_wake:
                with contextlib.suppress(GateUnreachable):
                    await self._sleeping.renew(self.needs)


def _limits(want: Want) -> Limits:
    stalls = dict(lifecycle.DEFAULT_STALL_S)
    for name, seconds in want.spec.phase_stall_s.items():
        stalls[ReplicaState(name)] = seconds
    return Limits(stalls, want.spec.drain_deadline_s, want.spec.stop_grace_s)
