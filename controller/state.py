"""What a decision is made from: the fleet as Redis shows it, and the little that a leader remembers on its own.

Everything that has to outlive the leader is in the view. :class:`Memory` only holds what a new leader can do without
for a few seconds: which demand it has answered, what it could not place yet, since when a replica is spare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from controller.places import Place
from fleet import FleetView
from rewarm.config import PlacementRules
from rewarm.messages import ReplicaReport, Want, WorkerBeat
from rewarm.states import ENDED, LOADING, ReplicaState

Needs = Mapping[str, int]
"""Bytes by device of one worker."""

_SERVED = (ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.DRAINING)


class StopReason(StrEnum):
    """Why the leader stops a replica, or puts it to sleep. Written into ``Want.reason``, for the next leader."""

    IDLE = "idle"
    REST = "rest"  # it sleeps: idle for long enough for that
    SLEEP = "sleep"  # the operator's `rewarm sleep`
    DRAIN = "drain"  # the operator's `rewarm drain`
    REPLACED = "replaced"  # another specification took its place
    REMOVED = "removed"  # the model left the configuration
    EVICTED = "evicted"  # another model needs the room
    SURPLUS = "surplus"  # more run than max_replicas allows


REVIVABLE: frozenset[str] = frozenset((StopReason.IDLE, StopReason.SLEEP))
"""Stops that a request arriving meanwhile takes back: nobody needs the memory or the machine for something else."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A start that is owed to a model and was not possible yet."""

    since_ms: int
    reason: str
    attempt: int = 1
    not_before_ms: int = 0
    asked: bool = False  # by an operator: stays although no ticket waits
    obstacle: str = ""  # why it was not possible, as last logged
    deaths: int = 0  # see Want


@dataclass(frozen=True, slots=True)
class ModelMemory:
    answered_ms: int | None = None  # demand up to here has led to a want or to a failure; None: not seen yet
    pending: Pending | None = None
    spare_since_ms: int | None = None  # since when one replica fewer would do
    need_bytes: int | None = None  # as an agent counted it for the last replica
    gpu_needs: Needs | None = None  # … by device, on a machine with GPUs
    made_room_ms: int = 0  # when a place's replica last had to stop for it
    asleep_bytes: int | None = None  # what one of them kept while it slept
    vain: int = 0  # replicas in a row that `min_asleep` had no use of: none of them came to sleep
    vain_ms: int = 0  # when the last of them was told to stop, or failed
    yielded_to: str = ""  # the model for which one that slept last had to stop


@dataclass(frozen=True, slots=True)
class Memory:
    term: int = 0
    serial: int = 0  # replicas started in this term; with the term it makes their ids
    hold_until_ms: int = 0  # nothing expires and nothing stops for idleness before
    redis_lost: bool = False
    configured: bool = False  # the catalogue in Redis is of this term: what it does not name was removed
    models: Mapping[str, ModelMemory] = field(default_factory=dict)
    rules: PlacementRules = field(default_factory=PlacementRules)  # of this process's configuration


@dataclass(frozen=True, slots=True)
class ControllerState:
    view: FleetView
    memory: Memory = Memory()
    places: Mapping[str, Place] = field(default_factory=dict)  # of a cluster, by name


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica, as wanted and as reported. At least one of the two is there."""

    id: str
    model: str
    worker: str
    want: Want | None
    report: ReplicaReport | None
    beat: WorkerBeat | None  # None: the worker's heartbeat has expired
    former: WorkerBeat | None = None  # the last word of the run that it was wanted of, where that one is over

    @property
    def lost(self) -> bool:
        return self.beat is None

    @property
    def state(self) -> ReplicaState:
        return ReplicaState.COLD if self.report is None else self.report.state

    @property
    def ended(self) -> bool:
        """Nothing comes of it any more. A stopped one that is wanted again is started anew by its agent."""
        if self.state is ReplicaState.STOPPED:
            return (
                self.want is None
                or self.want.state is not ReplicaState.READY
                or (self.beat is not None and self.beat.draining)
            )
        return self.state in ENDED

    @property
    def loading(self) -> bool:
        return self.state in LOADING or (self.state is ReplicaState.STOPPED and not self.ended)

    @property
    def ready(self) -> bool:
        return self.state is ReplicaState.READY

    @property
    def asleep(self) -> bool:
        return self.state is ReplicaState.ASLEEP

    @property
    def draining(self) -> bool:
        return self.state is ReplicaState.DRAINING

    @property
    def can_sleep(self) -> bool:
        return self.report is not None and self.report.can_sleep

    @property
    def rest_wanted(self) -> bool:
        """It is to sleep, or sleeps as wanted: nothing that answers demand before it is woken."""
        return self.want is not None and self.want.state is ReplicaState.ASLEEP

    @property
    def ahead(self) -> bool:
        """Loaded for ``min_asleep`` alone, and nobody has had any use of it yet."""
        return self.want is not None and self.want.ahead and not (self.busy or (self.report and self.report.served))

    @property
    def evicted(self) -> bool:
        """It sleeps, or is to, because another model needs its memory: it does not come back by itself."""
        return self.rest_wanted and self.want is not None and not self.want.may_wake

    @property
    def woken_since(self) -> bool:
        """By a request, after it had slept as wanted."""
        return self.rest_wanted and self.ready and self._ready_at_ms > (self.want.if_ready_at_ms if self.want else 0)

    @property
    def _ready_at_ms(self) -> int:
        return self.report.ready_at_ms if self.report is not None else 0

    @property
    def spec_hash(self) -> str:
        if self.want is not None:
            return self.want.spec_hash
        return self.report.spec_hash if self.report is not None else ""

    @property
    def attempt(self) -> int:
        return self.want.attempt if self.want is not None else self.report.attempt if self.report is not None else 1

    @property
    def stop_wanted(self) -> bool:
        return self.want is not None and self.want.state is ReplicaState.STOPPED

    @property
    def busy(self) -> int:
        """Requests it runs or has promised a slot to."""
        return 0 if self.report is None else self.report.in_flight + self.report.reserved

    @property
    def was_ready(self) -> bool:
        """Whether it ever served; tells the death of an engine, or of a worker, from that of a load."""
        report = self.report if self.former is None else _report(self.former, self.id)
        if report is None:
            return False
        failure = report.failure
        served_phase = failure is not None and failure.phase in _SERVED
        return report.ready_at_ms > 0 or served_phase

    @property
    def deaths(self) -> int:
        return self.want.deaths if self.want is not None else 0

    @property
    def orphaned(self) -> bool:
        """The run of its worker that it was wanted of is over, and another one has begun."""
        return self.beat is not None and self.want is not None and self.want.boot not in ("", self.beat.boot)

    @property
    def awaited(self) -> bool:
        """Wanted of a pod that had still to come, and has: its worker reports it."""
        if self.beat is None or self.want is None or self.report is None:
            return False
        unbound = not self.want.boot and self.want.state is ReplicaState.READY
        return unbound and bool(self.beat.only) and not self.beat.absent

    @property
    def serving(self) -> bool:
        """Serves, or will: what counts against ``max_replicas`` and answers demand."""
        if self.lost or self.ended or self.stop_wanted or self.want is None:
            return False
        leaving = self.beat is not None and self.beat.draining
        return not leaving


def replicas_of(view: FleetView) -> dict[str, list[Replica]]:
    """All replicas by model, wanted or reported, those of lost workers included."""
    found: dict[str, Replica] = {}
    for worker, wants in view.wants.items():
        beat = view.workers.get(worker)
        for want in wants.values():
            last = view.former.get(worker)
            former = last if last is not None and last.boot == want.boot else None
            found[want.replica] = Replica(want.replica, want.model, worker, want, None, beat, former)
    for worker, beat in view.workers.items():
        for report in beat.replicas:
            known = found.get(report.replica)
            want_, former = (known.want, known.former) if known is not None and known.worker == worker else (None, None)
            found[report.replica] = Replica(report.replica, report.model, worker, want_, report, beat, former)
    out: dict[str, list[Replica]] = {}
    for replica in found.values():
        out.setdefault(replica.model, []).append(replica)
    for group in out.values():
        group.sort(key=lambda r: r.id)
    return out


def _report(beat: WorkerBeat, replica: str) -> ReplicaReport | None:
    return next((report for report in beat.replicas if report.replica == replica), None)
