"""How far a load is, how long its phases took, why it failed."""

from __future__ import annotations

from rewarm.messages.codec import Message
from rewarm.states import FailureReason, ReplicaState


class Progress(Message, frozen=True, kw_only=True):
    """How far a load is. Feeds SSE, the 503 body, ``rewarm ps`` and the command line's bar alike.

    ``fraction`` (0..1 over the whole load) and ``phase_fraction`` never go back within an ``attempt``.
    """

    model: str
    replica: str | None = None
    phase: ReplicaState = ReplicaState.COLD
    phase_fraction: float = 0.0
    fraction: float = 0.0
    bytes_done: int = 0
    bytes_total: int = 0
    eta_s: float | None = None  # seconds to ready, None when unknown
    queue_position: int | None = None  # 0-based, filled in by the gateway that holds the ticket
    attempt: int = 1
    message: str = ""
    seq: int = 0
    at_ms: int = 0  # when it was told: `eta_s` counts from then; 0 from a worker that does not say


class PhaseTiming(Message, frozen=True, kw_only=True):
    phase: ReplicaState
    started_s: float  # seconds since the load's start
    duration_s: float
    bytes: int = 0


class Failure(Message, frozen=True, kw_only=True):
    """Why a load or a running engine failed, in words for a person and a reason for the retry policy."""

    reason: FailureReason
    message: str
    phase: ReplicaState
    attempt: int = 1
    at_ms: int = 0
    exit_status: int | None = None
    log_tail: str = ""


class PhaseHistory(Message, frozen=True, kw_only=True):
    """The last durations of one phase of a model's load on one machine, in seconds, oldest first."""

    seconds: tuple[float, ...] = ()
