"""The scratch pad of one decision: what was seen, what is decided so far, and the memory that it leaves behind."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from controller import breaker
from controller.actions import (
    Action,
    Cordon,
    Explain,
    FailWaiting,
    Forget,
    ForgetStatus,
    Keep,
    Note,
    Rest,
    SetStatus,
    Start,
    Stop,
    Uncordon,
    Unexplain,
)
from controller.state import Memory, ModelMemory, Needs, Pending, Replica, StopReason
from fleet import FleetView
from rewarm.errors import ModelLoadFailed
from rewarm.ids import slug
from rewarm.messages import CatalogueEntry, Explanation, Failure, ModelPolicy, ModelStatus, Want, WorkerBeat
from rewarm.states import ReplicaState

_NUMBER = re.compile(r"\d[\d.]*")


@dataclass(slots=True)
class Round:
    """Mutable, and never seen outside one call of ``decide``."""

    view: FleetView
    memory: Memory
    now_ms: int
    replicas: dict[str, list[Replica]]
    actions: list[Action] = field(default_factory=list)
    models: dict[str, ModelMemory] = field(default_factory=dict)
    # By worker, given away in this round: to replicas not yet in its ledger, and to those that wait for room there.
    planned_bytes: dict[str, dict[str, int]] = field(default_factory=dict)  # … by device
    planned_count: dict[str, int] = field(default_factory=dict)
    planned_models: dict[str, set[str]] = field(default_factory=dict)
    planned_loads: dict[str, int] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)  # replicas, all of them counted as planned
    explanations: dict[str, Explanation] = field(default_factory=dict)
    told_to_fail: set[str] = field(default_factory=set)
    cordons: dict[str, str] = field(default_factory=dict)  # worker → the boot that takes nothing new

    # --- memory -----------------------------------------------------------------------------------------------------

    def of(self, model: str) -> ModelMemory:
        return self.models.get(model) or self.memory.models.get(model) or ModelMemory()

    def remember(self, model: str, memory: ModelMemory) -> None:
        self.models[model] = memory

    def answered(self, model: str) -> None:
        """All demand up to now has had its effect."""
        self.remember(model, replace(self.of(model), answered_ms=self.now_ms))

    def owe(self, model: str, pending: Pending | None) -> None:
        self.remember(model, replace(self.of(model), pending=pending))

    # --- actions ----------------------------------------------------------------------------------------------------

    def start(
        self,
        entry: CatalogueEntry,
        worker: str,
        reason: str,
        *,
        needs: Needs,
        attempt: int = 1,
        not_before_ms: int = 0,
        deaths: int = 0,
        ahead: bool = False,
    ) -> None:
        """``needs``: the devices that it is expected on; its agent chooses. ``ahead``: see :class:`Want`."""
        serial = self.memory.serial + 1
        self.memory = replace(self.memory, serial=serial)
        beat = self.view.workers.get(worker)
        want = Want(
            replica=self._id(entry.model, serial),
            worker=worker,
            model=entry.model,
            spec=entry.spec,
            spec_hash=entry.spec_hash,
            state=ReplicaState.READY,
            term=self.memory.term,
            boot=beat.boot if beat is not None else "",
            not_boot=beat.leaving if beat is not None else "",
            attempt=attempt,
            deaths=deaths,
            not_before_ms=not_before_ms,
            wanted_ms=self.now_ms,
            waited_for=self.waiting(entry.model) > 0,
            ahead=ahead and not self.waiting(entry.model),
            reason=reason,
        )
        self.actions.append(Start(want, reason))
        self.planned_count[worker] = self.planned_count.get(worker, 0) + 1
        self.give_away(worker, entry.model, needs)
        if not_before_ms <= self.now_ms:
            self.planned_loads[worker] = self.planned_loads.get(worker, 0) + 1
        self.started.add(want.replica)
        self.replicas.setdefault(entry.model, []).append(Replica(want.replica, entry.model, worker, want, None, beat))

    def give_away(self, worker: str, model: str, needs: Needs) -> None:
        """For the rest of the round this room is nobody else's."""
        planned = self.planned_bytes.setdefault(worker, {})
        for device, size in needs.items():
            planned[device] = planned.get(device, 0) + size
        self.planned_models.setdefault(worker, set()).add(model)

    def stop(self, replica: Replica, why: StopReason, reason: str, *, if_idle: bool = False) -> None:
        """``if_idle``: only if its gate has seen no activity since the heartbeat this decision looks at."""
        last = replica.report.last_activity_ms if if_idle and replica.report is not None else None
        want = self._want(replica, ReplicaState.STOPPED, why.value, last)
        if want is None or (replica.stop_wanted and replica.want == _as_if_from(want, replica.want)):
            return
        self.actions.append(Stop(want, reason))
        self._swap(replica, want)

    def rest(
        self,
        replica: Replica,
        policy: ModelPolicy,
        why: StopReason,
        reason: str,
        *,
        if_idle: bool,
        may_wake: bool = True,
    ) -> None:
        """``if_idle`` as for :meth:`stop`; without it, as soon as nothing runs. ``may_wake``: see :class:`Want`."""
        if replica.rest_wanted or replica.report is None:
            return
        last = replica.report.last_activity_ms if if_idle else None
        want = self._want(replica, ReplicaState.ASLEEP, why.value, last)
        if want is not None:
            at = {"if_ready_at_ms": replica.report.ready_at_ms, "sleep_level": policy.sleep_level}
            want = msgspec.structs.replace(want, **at, may_wake=may_wake)
            self.actions.append(Rest(want, reason))
            self._swap(replica, want)

    def let_wake(self, replica: Replica, reason: str) -> None:
        """A request may wake it again without asking."""
        if replica.want is not None:
            want = msgspec.structs.replace(
                replica.want, may_wake=True, term=self.memory.term, reason=StopReason.REST.value
            )
            self.actions.append(Rest(want, reason))
            self._swap(replica, want)

    def keep(self, replica: Replica, reason: str) -> None:
        want = self._want(replica, ReplicaState.READY, reason, None)
        if want is not None:
            if replica.was_ready:  # where its stop was over already, this is a load of its own
                want = msgspec.structs.replace(want, attempt=1, deaths=0)
            self.actions.append(Keep(want, reason))
            self._swap(replica, want)

    def heed(self, replica: Replica) -> None:
        """While it loads its worker knows whether anybody waits for it: such a load is not held back."""
        want, waited_for = replica.want, self.waiting(replica.model) > 0
        if want is None or replica.lost or not replica.loading:
            return
        if want.state is not ReplicaState.READY or want.waited_for is waited_for:
            return
        ahead = want.ahead and not waited_for
        want = msgspec.structs.replace(want, waited_for=waited_for, ahead=ahead, term=self.memory.term)
        self.actions.append(
            Keep(want, "somebody waits for its load" if waited_for else "nobody waits for its load now")
        )
        self._swap(replica, want)

    def bind(self, replica: Replica) -> None:
        """The pod that it was wanted of has come: from now on it is wanted of this run of the worker only."""
        if replica.want is not None and replica.beat is not None:
            term, boot = self.memory.term, replica.beat.boot
            want = msgspec.structs.replace(replica.want, term=term, boot=boot, not_boot="")
            self.actions.append(Keep(want, f"its pod {replica.beat.host} has come"))
            self._swap(replica, want)

    def forget(self, replica: Replica, reason: str) -> None:
        """Its want goes; for this round it is no longer there."""
        if replica.want is not None:
            self.actions.append(Forget(replica.worker, replica.id, reason))
        group = self.replicas.get(replica.model, [])
        self.replicas[replica.model] = [r for r in group if r.id != replica.id]

    def cordon(self, beat: WorkerBeat, reason: str) -> None:
        if self.cordons.get(beat.worker) != beat.boot:
            self.cordons[beat.worker] = beat.boot
            self.actions.append(Cordon(beat.worker, beat.boot, reason))

    def lift_cordons(self) -> None:
        """Of workers that were restarted. One that is only away keeps its cordon."""
        for worker, boot in sorted(self.cordons.items()):
            beat = self.view.workers.get(worker)
            if beat is not None and not beat.absent and beat.boot != boot:
                del self.cordons[worker]
                self.actions.append(Uncordon(worker, "it was restarted"))

    def fail_waiting(
        self,
        model: str,
        failure: Failure | None,
        message: str,
        code: str = ModelLoadFailed.code,
        *,
        jobs: Literal["keep", "count", "fail"] = "keep",
    ) -> None:
        """At most once a round, and only when somebody waits or has just asked. ``jobs``: see :class:`FailWaiting`."""
        if model not in self.told_to_fail:
            self.told_to_fail.add(model)
            self.actions.append(FailWaiting(model, code, message, failure, jobs))

    def set_status(self, status: ModelStatus, reason: str) -> None:
        """In place of what this round has decided about it before."""
        self.actions = [a for a in self.actions if not (isinstance(a, SetStatus) and a.status.model == status.model)]
        self.actions.append(SetStatus(status, reason))

    def note(self, subject: str, reason: str) -> None:
        self.actions.append(Note(subject, reason))

    def explain(self, model: str, text: str, worker: str = "", yields: Sequence[str] = ()) -> None:
        """Why it waits, for the log and for whoever waits."""
        self.explanations[model] = Explanation(
            model=model, text=text, since_ms=self.now_ms, worker=worker, yields=tuple(yields)
        )

    def publish_explanations(self) -> None:
        """Those that say something new: a number alone that moved on is none."""
        told = self.view.explanations
        for model, new in sorted(self.explanations.items()):
            old = told.get(model)
            if old is None or _NUMBER.sub("", old.text) != _NUMBER.sub("", new.text):
                since_ms = new.since_ms if old is None else old.since_ms
                self.actions.append(Explain(msgspec.structs.replace(new, since_ms=since_ms)))
        for model in sorted(told.keys() - self.explanations.keys()):
            self.actions.append(Unexplain(model))

    # --- what is known ----------------------------------------------------------------------------------------------

    def group(self, model: str) -> Sequence[Replica]:
        return tuple(self.replicas.get(model, ()))

    def serving(self, model: str) -> list[Replica]:
        """Replicas that serve or will. While absence proves nothing, those of an unseen worker are taken to live."""
        return [
            r
            for r in self.group(model)
            if r.serving or (r.lost and self.holding and r.want is not None and not r.stop_wanted)
        ]

    def waiting(self, model: str) -> int:
        """Held requests and jobs: both wake a model, keep it up, and ask for more of it."""
        return self.tickets(model) + self.jobs(model)

    def tickets(self, model: str) -> int:
        """Held requests: somebody waits at the other end, and has to be told of a failure."""
        found = self.view.waiting.get(model)
        return 0 if found is None or model in self.told_to_fail else found.count

    def oldest_ticket_ms(self, model: str) -> int:
        """When it was first enqueued; 0 when none waits."""
        found = self.view.waiting.get(model)
        return 0 if found is None else found.oldest_ms

    def jobs(self, model: str) -> int:
        found = self.view.waiting.get(model)
        return 0 if found is None or model in self.told_to_fail else found.jobs

    def need(self, entry: CatalogueEntry) -> int:
        """Bytes that a replica will take; 0 while nobody knows."""
        if entry.spec.memory_bytes is not None:
            return entry.spec.memory_bytes
        memory = self.of(entry.model)
        return memory.need_bytes or 0

    def find(self, replica: str) -> Replica | None:
        return next((r for group in self.replicas.values() for r in group if r.id == replica), None)

    def shut(self, model: str) -> frozenset[str]:
        """Workers where its breaker is open, or half-open with a probe under way."""
        return breaker.shut(self.status(model), {r.worker for r in self.group(model) if r.loading}, self.now_ms)

    def status(self, model: str) -> ModelStatus | None:
        """What is remembered of its failures, with what this round has already decided about it."""
        status = self.view.statuses.get(model)
        for action in self.actions:
            if isinstance(action, SetStatus) and action.status.model == model:
                status = action.status
            elif isinstance(action, ForgetStatus) and action.model == model:
                status = None
        return status

    @property
    def holding(self) -> bool:
        return holding(self.memory, self.now_ms)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _id(self, model: str, serial: int) -> str:
        """Unique because terms are; computed, so that a decision stays a function of its inputs."""
        digest = hashlib.sha256(f"{self.memory.term}:{serial}:{model}".encode()).digest()
        return f"{slug(model)}-{base64.b32encode(digest).decode().lower()[:8]}"

    def jitter(self, salt: str) -> float:
        """0..1, the same for the same term and salt."""
        digest = hashlib.sha256(f"{self.memory.term}:{salt}".encode()).digest()
        return int.from_bytes(digest[:4], "big") / 2**32

    def _want(self, replica: Replica, state: ReplicaState, reason: str, last: int | None) -> Want | None:
        spec, spec_hash, attempt = None, replica.spec_hash, replica.attempt
        if replica.want is not None:
            spec = replica.want.spec
        else:
            entry = self.view.catalogue.get(replica.model)
            spec = entry.spec if entry is not None else None
        if spec is None:
            return None  # neither a want nor a catalogue entry: its agent stops it by itself
        return Want(
            replica=replica.id,
            worker=replica.worker,
            model=replica.model,
            spec=spec,
            spec_hash=spec_hash,
            state=state,
            term=self.memory.term,
            boot=replica.beat.boot if replica.beat is not None else "",
            attempt=attempt,
            deaths=replica.deaths,
            wanted_ms=replica.want.wanted_ms if replica.want is not None else 0,
            if_last_activity_ms=last,
            waited_for=state is ReplicaState.READY and self.waiting(replica.model) > 0,
            reason=reason,
        )

    def _swap(self, replica: Replica, want: Want) -> None:
        group = self.replicas.get(replica.model, [])
        self.replicas[replica.model] = [replace(r, want=want) if r.id == replica.id else r for r in group]


def holding(memory: Memory, now_ms: int) -> bool:
    """Redis is away or has only just come back: absence proves nothing."""
    return memory.redis_lost or now_ms < memory.hold_until_ms


def _as_if_from(want: Want, other: Want | None) -> Want:
    """``want`` as the writer of ``other`` would have put it: two that then differ in nothing ask for the same."""
    if other is None:
        return want
    return msgspec.structs.replace(want, term=other.term, attempt=other.attempt, not_before_ms=other.not_before_ms)
