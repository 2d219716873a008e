"""A job as clients see it: its record in Redis and what the fleet's view knows of its model's load. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.view import Target, View
from rewarm.errors import EngineError, JobAttemptsExhausted, JobCancelled, JobExpired, RewarmError
from rewarm.errors import catalogue as error_classes
from rewarm.jobs import TERMINAL, Job, JobState
from rewarm.messages import Progress
from rewarm.states import ReplicaState

_ERRORS = {cls.code: cls for cls in error_classes()}

_REMEMBERED = 20_000
MAX_RETRY_AFTER_S = 8  # some clients sleep for whatever they are told


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a job is on its way to an engine. ``phase``: the load's, or ``ready`` (waits for a slot), or ``running``.

    ``fraction`` is of the model's load, 0 to 1; ``eta_s`` are the seconds until an engine takes the job, through the
    rest of the load and those before it in the queue, None while unknown.
    """

    phase: str
    fraction: float
    eta_s: float | None = None
    progress: Progress | None = None  # of the load, while there is one


@dataclass(frozen=True, slots=True)
class Room:
    """What a model's replicas have for jobs: all slots but one of each, if it has several, and how many are free."""

    slots: int
    free: int

    @classmethod
    def of(cls, targets: Sequence[Target]) -> Room | None:
        """None where no replica is ready. ``free`` is as of their last heartbeats; who runs need not be a job."""
        if not targets:
            return None
        free = sum(
            max(0, _for_jobs(target.slots) - target.report.in_flight - target.report.reserved) for target in targets
        )
        return cls(sum(_for_jobs(target.slots) for target in targets), free)

    @classmethod
    def of_one(cls, slots: int) -> Room:
        """Of a replica that will be ready, and empty."""
        return cls(_for_jobs(slots), _for_jobs(slots))


def _for_jobs(slots: int) -> int:
    """As the worker counts, which keeps one slot free for a client that waits."""
    return max(1, slots - 1)


class Pace:
    """How long a model's jobs run, from those that were seen to end: what a place in the queue is worth in seconds."""

    _WEIGHT = 0.2  # of the newest

    def __init__(self) -> None:
        self._mean_s: dict[str, float] = {}
        self._seen: dict[str, None] = {}

    def observe(self, job: Job) -> None:
        """Call it as often as the job is looked at; each counts once."""
        if job.state is not JobState.COMPLETED or job.started_ms is None or job.ended_ms is None:
            return
        if job.spec.id in self._seen:
            return
        _remember(self._seen, job.spec.id, None)
        ran_s = max(0, job.ended_ms - job.started_ms) / 1000
        model = job.model or job.spec.model
        mean_s = self._mean_s.get(model, ran_s)
        self._mean_s[model] = mean_s + self._WEIGHT * (ran_s - mean_s)

    def wait_s(self, model: str, position: int | None, room: Room) -> float | None:
        """Until those before ``position``, and those who run, have made room for it; None while nobody has been seen to
        end.

        ``slots`` jobs at a time end one after the other, each ``1 / slots`` of a job's time after the last.
        """
        if position is None:
            return None
        ends = position + 1 - room.free
        if ends <= 0:
            return 0.0
        mean_s = self._mean_s.get(model)
        return None if mean_s is None else ends * mean_s / room.slots


class Showing:
    """:meth:`describe` is what ``GET /v1/jobs/{id}`` answers.

    A shown fraction never falls, not even when a second attempt at the load begins: this gateway remembers what it has
    shown of each job that has not ended.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._pace = Pace()
        self._shown: dict[str, float] = {}

    def stage(self, job: Job) -> Stage | None:
        """None once the job has ended."""
        if job.state in TERMINAL:
            self._shown.pop(job.spec.id, None)
            self._pace.observe(job)
            return None
        stage = self._stage(job)
        fraction = max(stage.fraction, self._shown.get(job.spec.id, 0.0))
        if fraction:
            _remember(self._shown, job.spec.id, fraction)
        return Stage(stage.phase, fraction, stage.eta_s, stage.progress)

    def _stage(self, job: Job) -> Stage:
        if job.state is JobState.IN_PROGRESS:
            return Stage("running", 1.0, 0.0)
        model = job.model or job.spec.model
        ready = self._view.ready(model)
        entry = self._view.entry(model)
        room = Room.of(ready) or Room.of_one(entry.spec.slots if entry else 1)
        queue_s = self._pace.wait_s(model, job.position, room)
        if ready or (entry is not None and entry.remote is not None):
            return Stage("ready", 1.0, queue_s)
        progress = self._view.progress(model)
        if progress is None:
            return Stage("cold", 0.0)
        load_s = progress.eta_s
        eta_s = None if load_s is None or queue_s is None else load_s + queue_s
        return Stage(progress.phase.value, progress.fraction, eta_s, progress)

    def describe(self, job: Job) -> dict[str, Any]:
        spec, stage = job.spec, self.stage(job)
        url = f"/v1/jobs/{spec.id}"
        status = job.state.value
        # A model that waits for room, or for a worker, has told why, and loads nothing yet.
        if stage is not None and stage.progress is not None and stage.progress.phase is not ReplicaState.COLD:
            status = JobState.LOADING.value
        return {
            "id": spec.id,
            "object": "job",
            "status": status,
            "kind": spec.kind,
            "endpoint": spec.path,
            "model": spec.asked_model,
            "served_model": job.model or spec.model,
            "fallback": _fallback(job),
            "priority": spec.priority,
            "created_at": job.created_ms / 1000,
            "start_deadline_at": _seconds(spec.start_deadline_ms),
            "started_at": _seconds(job.started_ms),
            "ended_at": _seconds(job.ended_ms),
            "expires_at": _seconds(job.expires_ms),
            "waited_s": round(job.waited_ms / 1000, 3),
            "queue_position": job.position if stage is not None else None,
            "progress": _progress(stage),
            "tokens": job.tokens,
            "attempt": job.attempt,
            "spent": job.spent,
            "max_attempts": spec.max_attempts,
            "loads": job.loads,
            "cancel_requested": job.cancel,
            "usage": job.usage,
            "http_status": job.http_status,
            "error": error_payload(job),
            "metadata": spec.metadata,
            "webhook": None if spec.webhook is None else {"url": spec.webhook.url, "events": list(spec.webhook.events)},
            "status_url": url,
            "events_url": f"{url}/events",
            "result_url": f"{url}/result",
            "cancel_url": f"{url}/cancel",
        }

    def retry_after_s(self, job: Job) -> int | None:
        """How long a client had better wait before it asks again; None when there is nothing more to come."""
        stage = self.stage(job)
        if stage is None:
            return None
        if stage.eta_s is None:
            return 2
        return max(1, min(MAX_RETRY_AFTER_S, round(stage.eta_s / 4)))


def _fallback(job: Job) -> dict[str, str] | None:
    if not job.fallback:
        return None
    return {"from": job.spec.model, "to": job.model, "reason": job.fallback}


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _progress(stage: Stage | None) -> dict[str, Any] | None:
    if stage is None:
        return None
    load = stage.progress
    return {
        "phase": stage.phase,
        "fraction": round(stage.fraction, 4),
        "eta_s": None if stage.eta_s is None else round(stage.eta_s, 1),
        "bytes_done": load.bytes_done if load else 0,
        "bytes_total": load.bytes_total if load else 0,
        "load_attempt": load.attempt if load else None,
        "message": load.message if load else "",
    }


# --- how it ended ----------------------------------------------------------------------------------------------------


def failure_of(job: Job) -> RewarmError | None:
    """Why there is no answer, as an error with its own status; None for a job that completed or has not ended."""
    if job.state is JobState.CANCELLED:
        return JobCancelled(job.error_message or "the job was cancelled")
    if job.state is JobState.EXPIRED:
        return JobExpired(job.error_message or "the job was not started before its deadline")
    if job.state is not JobState.FAILED:
        return None
    known = _ERRORS.get(job.error_code or JobAttemptsExhausted.code)
    message = job.error_message or "the job failed"
    return known(message) if known not in (None, EngineError) else _EnginesOwn(message, job)


class _EnginesOwn(EngineError):
    """The engine's own error, with its code and status."""

    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        status = job.http_status if job.http_status and 400 <= job.http_status <= 599 else EngineError.status
        # Per job here, per class elsewhere.
        self.code = job.error_code or EngineError.code  # type: ignore[misc]
        self.status = status  # type: ignore[misc]
        self.type = "invalid_request_error" if status < 500 else "server_error"  # type: ignore[misc]


def error_payload(job: Job) -> dict[str, Any] | None:
    """The ``error`` of a job that failed or expired."""
    if job.state is JobState.CANCELLED:
        return None
    error = failure_of(job)
    return None if error is None else error.payload()


def _remember(memory: dict[str, Any], key: str, value: Any) -> None:
    """The newest last; the oldest goes."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]
