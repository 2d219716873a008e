"""A durable job as it crosses Redis: what was asked, how it stands, what a worker holds of it, how it ended.

Times called ``*_ms`` are milliseconds of Redis ``TIME``, durations are ``*_s``, sizes ``*_bytes``. Like
:mod:`rewarm.messages`, every message carries a schema version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from rewarm.messages import Message


class JobState(StrEnum):
    """Where a job is in its life. LOADING is never stored: a queued job whose model loads is *shown* as loading."""

    QUEUED = "queued"
    LOADING = "loading"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its start deadline passed while it was queued


TERMINAL: frozenset[JobState] = frozenset((JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED))

HOOK_EVENTS: tuple[str, ...] = ("in_progress", "completed", "failed", "cancelled", "expired")
"""What a webhook can ask to be told."""


class WebhookSpec(Message, frozen=True, kw_only=True):
    url: str
    events: tuple[str, ...] = ("completed", "failed", "cancelled", "expired")
    secret_id: str = "default"  # noqa: S105 -- a name of one


class JobSpec(Message, frozen=True, kw_only=True):
    """What was asked; never changes. The body lies beside it."""

    id: str
    tenant: str
    model: str  # the catalogue's name
    asked_model: str
    path: str  # "/v1/chat/completions" …
    kind: Literal["job", "response", "batch"] = "job"
    priority: Literal["high", "normal", "low"] = "normal"
    band: int = 4  # of fleet.JOB_BANDS; a handed-off one keeps its interactive band
    weight: float = 1.0
    cost: float = 1.0
    start_deadline_ms: int | None = None  # absolute; None: none
    max_attempts: int = 3
    max_loads: int = 3  # failed loads of its model that it waits through, less one
    max_run_s: float = 3600.0
    retention_s: int = 604800  # after the end
    webhook: WebhookSpec | None = None
    metadata: dict[str, str] = {}  # noqa: RUF012 -- msgspec gives each its own
    batch: str | None = None
    custom_id: str | None = None
    stream: bool = False  # the client's own body asked for a stream
    fallback: tuple[str, ...] = ()  # models that may answer instead, of those that can: see rewarm.fallback
    homes: dict[str, str] = {}  # noqa: RUF012 -- msgspec. Of those above that are adapters: name → base

    def queue(self, model: str) -> str:
        """Where it waits for ``model``, one of those above: an adapter's jobs wait for its base."""
        return self.homes.get(model, model)


class Job(Message, frozen=True, kw_only=True):
    """One reading of a job."""

    spec: JobSpec
    state: JobState
    created_ms: int
    started_ms: int | None = None  # of the latest attempt
    ended_ms: int | None = None
    expires_ms: int | None = None  # when the result is forgotten; None until the end
    attempt: int = 0  # numbers every lease; in chunk ids
    spent: int = 0  # attempts that count against `max_attempts`
    loads: int = 0  # failed loads it waited through
    worker: str | None = None  # its name
    replica: str | None = None
    cancel: bool = False  # asked for while it ran
    tokens: int = 0
    chunks: int = 0  # of this attempt
    error_code: str | None = None
    error_message: str | None = None
    http_status: int | None = None
    position: int | None = None  # 0-based over all bands; queued only
    result_bytes: int = 0
    usage: dict[str, Any] | None = None
    waited_ms: int = 0  # until the latest attempt began, the end where none did, or now
    model: str = ""  # that it waits for, or that answered: a fallback, or the spec's
    fallback: str = ""  # why that is a fallback: a reason of rewarm.fallback


class JobLease(Message, frozen=True, kw_only=True):
    """A job that a worker runs now. ``attempt`` fences every write."""

    spec: JobSpec
    attempt: int
    grant: str  # the offer it took: a reservation at the claiming worker's own gate
    replica: str
    deadline_ms: int
    created_ms: int
    spent: int = 1  # attempts that count, this one included: more than 1 means that one ended without an answer
    model: str = ""  # that it is claimed for: a fallback, or the spec's
    chain: str = ""  # where in its fallback chain that is, see fleet.jobs.moving


class JobOutcome(Message, frozen=True, kw_only=True):
    """How an attempt ended for good: COMPLETED, FAILED or CANCELLED; ValueError for any other state."""

    state: JobState
    http_status: int
    error_code: str | None = None
    error_message: str | None = None
    usage: dict[str, Any] | None = None
    tokens: int = 0

    def __post_init__(self) -> None:
        if self.state not in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED):
            raise ValueError(f"no job ends its run as {self.state}")
