"""A small language for fleets: build a view, decide, apply the actions, look again. No Redis, no process, no clock.

:class:`World` plays Redis and the agents: it keeps the wants that decisions publish, and moves replicas on when told.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from controller.actions import (
    Action,
    Cordon,
    Explain,
    FailWaiting,
    Forget,
    ForgetStatus,
    Keep,
    PublishCatalogue,
    Rest,
    SetCanary,
    SetStatus,
    Start,
    Stop,
    Uncordon,
    Unexplain,
)
from controller.decide import decide
from controller.events import Configured, Elected, Event, Tick
from controller.places import Place, Seen
from controller.state import ControllerState, Memory
from fleet import FleetView, Waiting
from rewarm.config import PlacementRules
from rewarm.messages import (
    Canary,
    CatalogueEntry,
    DeviceReport,
    Explanation,
    Failure,
    ModelPolicy,
    ModelStatus,
    ReplicaReport,
    ReplicaSpec,
    Want,
    WorkerBeat,
)
from rewarm.states import FailureReason, ReplicaState

GIB = 2**30
START_MS = 1_000_000_000


def entry(
    model: str = "m", *, spec_hash: str = "h1", slots: int = 4, memory: int | None = None, **policy: object
) -> CatalogueEntry:
    spec = ReplicaSpec(model=model, engine="command", served_names=(model,), slots=slots, memory_bytes=memory)
    return CatalogueEntry(
        model=model, aliases=(), spec=spec, spec_hash=spec_hash, policy=msgspec.convert(policy, ModelPolicy)
    )


def ram(budget: int, free: int | None = None) -> DeviceReport:
    return DeviceReport(id="ram", kind="ram", budget_bytes=budget, free_bytes=budget if free is None else free)


def gpu(index: int, budget: int, free: int | None = None, **fields: Any) -> DeviceReport:
    left = budget if free is None else free
    return DeviceReport(id=f"GPU-{index}", kind="gpu", index=index, budget_bytes=budget, free_bytes=left, **fields)


@dataclass
class World:
    """``step`` lets the controller decide and applies what it says at once."""

    now_ms: int = START_MS
    rules: PlacementRules = field(default_factory=PlacementRules)
    memory: Memory = field(default_factory=Memory)
    catalogue: dict[str, CatalogueEntry] = field(default_factory=dict)
    workers: dict[str, WorkerBeat] = field(default_factory=dict)
    reports: dict[str, dict[str, ReplicaReport]] = field(default_factory=dict)  # worker → replica → report
    statuses: dict[str, ModelStatus] = field(default_factory=dict)
    explanations: dict[str, Explanation] = field(default_factory=dict)
    canaries: dict[str, Canary] = field(default_factory=dict)
    cordons: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)  # when the oldest that waits came
    jobs: dict[str, int] = field(default_factory=dict)  # that wait
    job_since: dict[str, int] = field(default_factory=dict)
    demand: dict[str, int] = field(default_factory=dict)
    wants: dict[str, dict[str, Want]] = field(default_factory=dict)
    former: dict[str, WorkerBeat] = field(default_factory=dict)  # last words
    places: dict[str, Place] = field(default_factory=dict)
    absent: dict[str, WorkerBeat] = field(default_factory=dict)  # as the leader last said
    failed: list[FailWaiting] = field(default_factory=list)
    log: list[Action] = field(default_factory=list)

    @classmethod
    def of(
        cls, *entries: CatalogueEntry, workers: int = 1, memory: int = 16 * GIB, rules: PlacementRules | None = None
    ) -> World:
        """An elected leader, past the time in which nothing expires."""
        world = cls()
        for number in range(workers):
            world.add_worker(f"w{number + 1}", memory=memory)
        world.step(Elected(1))
        world.rules = rules or PlacementRules()
        world.step(Configured({e.model: e for e in entries}, world.rules))
        world.pass_s(10)
        world.log.clear()
        return world

    # --- the fleet's side --------------------------------------------------------------------------------------------

    def add_worker(self, name: str, *gpus: DeviceReport, memory: int = 16 * GIB, boot: str | None = None) -> None:
        """``memory``: its budget of RAM."""
        self._end(name)
        self.workers[name] = WorkerBeat(
            worker=name,
            boot=boot or f"{name}-boot-1",
            host=name,
            pid=1,
            devices=(ram(memory), *gpus),
        )
        self.reports[name] = {}

    def set_free(self, worker: str, free: int, device: str = "ram") -> None:
        """What its agent has measured of a device."""
        beat = self.workers[worker]
        found = tuple(
            msgspec.structs.replace(one, free_bytes=free) if one.id == device else one for one in beat.devices
        )
        self.workers[worker] = msgspec.structs.replace(beat, devices=found)

    def add_place(self, name: str, model: str = "m") -> None:
        """A place of a cluster, without a pod."""
        self.places[name] = Place(name, model)

    def see(self, name: str, **seen: Any) -> None:
        """What the cluster says of it from now on."""
        self.places[name] = replace(self.places[name], seen=Seen(**seen))

    def pod_comes(self, name: str, *, boot: str = "pod-1") -> None:
        """Its worker registers; it has not looked at its wants yet."""
        self.add_worker(name, boot=boot)
        self.workers[name] = msgspec.structs.replace(self.workers[name], only=self.places[name].model, host=boot)

    def lose_worker(self, name: str) -> None:
        self._end(name)
        del self.workers[name]
        self.reports.pop(name, None)

    def worker_leaves(self, name: str) -> None:
        """As after SIGTERM: it drains, says so, and is gone before the leader looks."""
        self.workers[name] = msgspec.structs.replace(self.workers[name], draining=True)
        self.lose_worker(name)

    def _end(self, name: str) -> None:
        """This run of the worker is over."""
        beats = self.beats()
        if name in beats:
            self.former[name] = beats[name]

    def ask(self, model: str = "m", tickets: int = 1) -> None:
        if not self.waiting.get(model):
            self.since[model] = self.now_ms
        self.waiting[model] = self.waiting.get(model, 0) + tickets
        self.demand[model] = self.now_ms

    def submit(self, model: str = "m", jobs: int = 1) -> None:
        if not self.jobs.get(model):
            self.job_since[model] = self.now_ms
        self.jobs[model] = self.jobs.get(model, 0) + jobs
        self.demand[model] = self.now_ms

    def answer_all(self, model: str = "m") -> None:
        self.waiting[model] = 0

    def report(self, replica: str, state: ReplicaState, **fields: object) -> ReplicaReport:
        """What the agent says of a wanted replica from now on."""
        worker, want = next((w, wants[replica]) for w, wants in self.wants.items() if replica in wants)
        before = self.reports[worker].get(replica)
        known = msgspec.structs.asdict(before) if before is not None else {}
        known.update(
            replica=replica,
            model=want.model,
            spec_hash=want.spec_hash,
            state=state,
            term=want.term,
            attempt=want.attempt,
            slots=want.spec.slots,
        )
        known.update(fields)
        if "need_bytes" in fields and "needs" not in fields:
            known["needs"] = {"ram": fields["need_bytes"]} if fields["need_bytes"] else {}
        made = ReplicaReport(**known)
        self.reports[worker][replica] = made
        return made

    def ready(self, replica: str, **fields: object) -> None:
        fields.setdefault("ready_at_ms", self.now_ms)
        fields.setdefault("last_activity_ms", self.now_ms)
        self.report(replica, ReplicaState.READY, **fields)

    def asleep(self, replica: str) -> None:
        self.report(replica, ReplicaState.ASLEEP, in_flight=0)

    def fails(self, replica: str, reason: FailureReason, message: str = "it broke") -> None:
        self.report(
            replica,
            ReplicaState.FAILED,
            failure=Failure(reason=reason, message=message, phase=ReplicaState.STARTING),
        )

    # --- the controller's side ---------------------------------------------------------------------------------------

    def beats(self) -> dict[str, WorkerBeat]:
        return {
            name: msgspec.structs.replace(beat, replicas=tuple(self.reports.get(name, {}).values()))
            for name, beat in self.workers.items()
        }

    def view(self) -> FleetView:
        return FleetView(
            now_ms=self.now_ms,
            catalogue=dict(self.catalogue),
            workers=self.beats(),
            former=dict(self.former),
            statuses=dict(self.statuses),
            waiting={
                m: Waiting(
                    count=self.waiting.get(m, 0),
                    oldest_ms=self.since.get(m, self.now_ms) if self.waiting.get(m) else 0,
                    jobs=self.jobs.get(m, 0),
                    oldest_job_ms=self.job_since.get(m, self.now_ms) if self.jobs.get(m) else 0,
                )
                for m in self.waiting.keys() | self.jobs.keys()
            },
            explanations=dict(self.explanations),
            canaries=dict(self.canaries),
            cordons=dict(self.cordons),
            demand_ms=dict(self.demand),
            wants={w: dict(wants) for w, wants in self.wants.items()},
            term=self.memory.term,
            leader="leader",
            gateways=1,
        )

    def step(self, event: Event | None = None) -> list[Action]:
        """One decision; what it did, without notes."""
        decision = decide(ControllerState(self.view(), self.memory, self.places), event or Tick(), self.now_ms)
        self.memory = decision.state.memory
        self.absent = dict(decision.absent)
        for action in decision.actions:
            self._apply(action)
        self.log += decision.actions
        return list(decision.actions)

    def pass_s(self, seconds: float) -> list[Action]:
        self.now_ms += int(seconds * 1000)
        return self.step()

    def _apply(self, action: Action) -> None:
        match action:
            case Start(want) | Stop(want) | Rest(want) | Keep(want):
                self.wants.setdefault(want.worker, {})[want.replica] = want
            case Forget(worker, replica):
                self.wants.get(worker, {}).pop(replica, None)
                self.reports.get(worker, {}).pop(replica, None)
            case FailWaiting(model):
                self.failed.append(action)
                self.waiting[model] = 0
                if action.jobs == "fail":
                    self.jobs.pop(model, None)
                    self.demand.pop(model, None)
            case SetStatus(status):
                self.statuses[status.model] = status
            case ForgetStatus(model):
                self.statuses.pop(model, None)
            case Cordon(worker, boot):
                self.cordons[worker] = boot
            case Uncordon(worker):
                self.cordons.pop(worker, None)
            case SetCanary(canary):
                self.canaries[canary.model] = canary
            case Explain(explanation):
                self.explanations[explanation.model] = explanation
            case Unexplain(model):
                self.explanations.pop(model, None)
            case PublishCatalogue(entries):
                self.catalogue = dict(entries)
                self.explanations = {m: e for m, e in self.explanations.items() if m in entries}
                self.statuses = {m: s for m, s in self.statuses.items() if m in entries}

    # --- looking -----------------------------------------------------------------------------------------------------

    def wanted(self, model: str = "m", state: ReplicaState = ReplicaState.READY) -> list[str]:
        """Replicas that are wanted in ``state``."""
        return [
            want.replica
            for wants in self.wants.values()
            for want in wants.values()
            if want.model == model and want.state is state
        ]

    def stopping(self, model: str = "m") -> list[str]:
        return self.wanted(model, ReplicaState.STOPPED)

    def want_of(self, replica: str) -> Want:
        return next(wants[replica] for wants in self.wants.values() if replica in wants)

    def wake(self, model: str = "m") -> str:
        """Ask once, let it load and become ready, answer; its replica."""
        self.ask(model)
        self.step()
        (replica,) = self.wanted(model)
        self.ready(replica)
        self.answer_all(model)
        self.step()
        return replica


def kinds(actions: list[Action]) -> list[str]:
    """Deeds, without the words for those who wait."""
    return [type(a).__name__ for a in actions if not isinstance(a, Explain | Unexplain)]
