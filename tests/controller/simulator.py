"""A small deterministic fleet: agents that take their time, memory that comes back late, clients that wait.

Time moves in steps of 100 ms. Each step clients arrive, agents move their replicas on and serve, the leader decides.
Nothing is random here; what happens is a list of :class:`Request` that the test makes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller.actions import Action, Start
from rewarm.messages import ReplicaReport, Want
from rewarm.states import LIVE, FailureReason, ReplicaState
from tests.controller.fleetview import World

STEP_MS = 100
NO_ROOM_PATIENCE_MS = 3_000

_S = ReplicaState


@dataclass
class Kind:
    """How a model behaves. Sizes in bytes, times in ms."""

    need: int
    load_ms: int = 1_000
    stop_ms: int = 300  # from the end of the last request until its memory is measured free
    asleep: int | None = None  # what it keeps asleep; None: it cannot sleep
    wake_ms: int = 100


@dataclass
class Request:
    at_ms: int
    model: str
    runs_ms: int = 200
    served_at_ms: int | None = None  # when it began to run
    done_at_ms: int | None = None

    @property
    def waited_ms(self) -> int:
        assert self.served_at_ms is not None, f"{self.model}, asked at {self.at_ms}, was never served"
        return self.served_at_ms - self.at_ms


@dataclass
class Body:
    """A replica as its agent knows it."""

    want: Want
    held: int = 0
    until_ms: int = 0  # end of the load, of the wake or of the stop that is under way
    cold_since_ms: int = 0
    running: list[Request] = field(default_factory=list)


class Simulation:
    def __init__(self, world: World, kinds: dict[str, Kind], requests: Iterable[Request]) -> None:
        self.world = world
        self.kinds = kinds
        self.begin_ms = world.now_ms
        self.coming = sorted(requests, key=lambda r: (r.at_ms, r.model))
        self.all = list(self.coming)
        self.queue: dict[str, list[Request]] = defaultdict(list)
        self.bodies: dict[str, Body] = {}
        self.starts: list[str] = []  # models, in the order in which they were loaded
        self.texts: dict[str, list[str]] = defaultdict(list)  # why each model waited
        self.on_decision: Callable[[list[Action]], None] = lambda actions: None

    @property
    def now_ms(self) -> int:
        return self.world.now_ms - self.begin_ms

    def run(self, within_s: float) -> None:
        """Until everybody was served. AssertionError that says who still waits."""
        while any(r.done_at_ms is None for r in self.all):
            assert self.now_ms < within_s * 1000, f"not served in {within_s} s: {self._left()}"
            self.step()

    def step(self) -> None:
        self.world.now_ms += STEP_MS
        while self.coming and self.coming[0].at_ms <= self.now_ms:
            self._arrives(self.coming.pop(0))
        for worker in list(self.world.workers):
            self._agent(worker)
        self._count()
        actions = self.world.step()
        self.on_decision(actions)
        self.starts += [a.want.model for a in actions if isinstance(a, Start)]
        for model, explanation in self.world.explanations.items():
            if self.texts[model][-1:] != [explanation.text]:
                self.texts[model].append(explanation.text)

    # --- clients -----------------------------------------------------------------------------------------------------

    def _arrives(self, request: Request) -> None:
        for replica, body in self.bodies.items():
            if body.want.model == request.model and self._open(replica) and not self.queue[request.model]:
                self._serve(replica, request)
                return
        self.queue[request.model].append(request)
        self.world.demand[request.model] = self.world.now_ms

    def _open(self, replica: str) -> bool:
        """To requests that come straight to its gate, and to claims."""
        body = self.bodies[replica]
        free = len(body.running) < body.want.spec.slots
        return self._state(replica) is _S.READY and free and (body.want.state is _S.READY or body.want.may_wake)

    def _serve(self, replica: str, request: Request) -> None:
        request.served_at_ms = self.now_ms
        self.bodies[replica].running.append(request)

    # --- agents ------------------------------------------------------------------------------------------------------

    def _agent(self, worker: str) -> None:
        wants = self.world.wants.get(worker, {})
        for replica in [r for r, body in self.bodies.items() if body.want.worker == worker and r not in wants]:
            del self.bodies[replica]
        for replica, want in sorted(wants.items()):
            body = self.bodies.setdefault(replica, Body(want, cold_since_ms=self.now_ms))
            body.want = want
            self._finish(replica, body)
            self._move(replica, body)
            while self._open(replica) and self.queue[want.model]:
                self._serve(replica, self.queue[want.model].pop(0))
            self._say(replica, body)
        held = sum(body.held for body in self.bodies.values() if body.want.worker == worker)
        budget = self._budget(worker)
        assert held <= budget, "more memory is held than there is"
        self.world.set_free(worker, budget - held)

    def _finish(self, replica: str, body: Body) -> None:
        for request in [r for r in body.running if self.now_ms >= (r.served_at_ms or 0) + r.runs_ms]:
            body.running.remove(request)
            request.done_at_ms = self.now_ms
            report = self._report(replica)
            served = 1 if report is None else report.served + 1
            self.world.report(replica, self._state(replica), last_activity_ms=self.world.now_ms, served=served)

    def _move(self, replica: str, body: Body) -> None:
        state, want, kind = self._state(replica), body.want, self.kinds[body.want.model]
        over = self.now_ms >= body.until_ms
        if state is _S.DRAINING:
            if not body.running and not body.until_ms:
                body.until_ms = self.now_ms + kind.stop_ms
            elif body.until_ms and over:
                body.held = 0
                self.world.report(replica, _S.STOPPED)
        elif want.state is _S.STOPPED:
            if state in (_S.READY, _S.ASLEEP) and not self._as_seen(replica, body):
                return
            body.until_ms = 0
            self.world.report(replica, _S.DRAINING if state in LIVE else _S.STOPPED)
        elif state is _S.COLD and want.state is _S.READY:
            self._load(replica, body, kind)
        elif state is _S.RESTORING and over:
            self.world.ready(replica, can_sleep=kind.asleep is not None)
        elif state is _S.READY and want.state is _S.ASLEEP and not body.running and self._as_seen(replica, body):
            assert kind.asleep is not None
            body.held = kind.asleep
            self.world.report(replica, _S.ASLEEP)
        elif state is _S.ASLEEP and want.state is _S.READY:
            if self._free(body.want.worker) >= kind.need - body.held:
                body.held, body.until_ms = kind.need, self.now_ms + kind.wake_ms
                self.world.report(replica, _S.RESTORING)

    def _load(self, replica: str, body: Body, kind: Kind) -> None:
        if self.world.now_ms < body.want.not_before_ms:
            body.cold_since_ms = self.now_ms
        elif kind.need <= self._free(body.want.worker):
            body.held, body.until_ms = kind.need, self.now_ms + kind.load_ms
            self.world.report(replica, _S.RESTORING)
        elif self.now_ms - body.cold_since_ms >= NO_ROOM_PATIENCE_MS:
            self.world.fails(replica, FailureReason.NO_ROOM, "no room")

    def _as_seen(self, replica: str, body: Body) -> bool:
        seen = body.want.if_last_activity_ms
        report = self._report(replica)
        return seen is None or (report is not None and seen == report.last_activity_ms and not body.running)

    def _say(self, replica: str, body: Body) -> None:
        state, kind = self._state(replica), self.kinds[body.want.model]
        waits = body.want.state is _S.READY and state in (_S.COLD, _S.ASLEEP)
        self.world.report(
            replica,
            state,
            in_flight=len(body.running),
            memory_bytes=body.held,
            need_bytes=kind.need if state in LIVE else 0,
            needs={"ram": kind.need} if body.held else {},
            waits_for_room=waits and self.world.now_ms >= body.want.not_before_ms,
        )

    def _free(self, worker: str) -> int:
        held = sum(body.held for body in self.bodies.values() if body.want.worker == worker)
        return self._budget(worker) - held

    def _budget(self, worker: str) -> int:
        return self.world.workers[worker].devices[0].budget_bytes

    def _state(self, replica: str) -> ReplicaState:
        report = self._report(replica)
        return _S.COLD if report is None else report.state

    def _report(self, replica: str) -> ReplicaReport | None:
        return self.world.reports[self.bodies[replica].want.worker].get(replica)

    def _count(self) -> None:
        for model in self.world.catalogue:
            waiting = self.queue[model]
            self.world.waiting[model] = len(waiting)
            self.world.since[model] = self.begin_ms + waiting[0].at_ms if waiting else 0

    def _left(self) -> str:
        left = Counter(request.model for request in self.all if request.done_at_ms is None)
        return "; ".join(f"{count} of {model} ({self.texts[model][-1:]})" for model, count in left.items())
