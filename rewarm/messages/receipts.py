"""What happened: one wake, those who waited for it, one request."""

from __future__ import annotations

from rewarm.messages.codec import Message
from rewarm.messages.loads import PhaseTiming
from rewarm.states import Tier


class Wake(Message, frozen=True, kw_only=True):
    """The receipt of one wake: what it was made of, from the agent's decision to the first verified answer. In a new
    pod from the leader's decision: the pod's coming is the first phase, ``pod_pending``.

    ``replica`` and ``ready_at_ms`` together name it: a replica that sleeps wakes more than once.
    """

    replica: str
    worker: str
    model: str
    ready_at_ms: int
    tier: Tier = Tier.COLD
    tier_reason: str = ""  # why not a better one
    weights: str = ""  # "source", or a flavour and the snapshot's name
    cause: str = ""  # what it was woken for
    attempt: int = 1
    duration_s: float = 0.0  # over all phases
    bytes: int = 0  # of weights
    gb_per_s: float | None = None  # 10⁹ bytes, while they were read; None where nothing was counted
    timings: tuple[PhaseTiming, ...] = ()
    # How far the ETA told half-way was off, as a share of what was really left: 0.1 told a tenth too much, -0.1 too
    # little. None where nothing was told. Of what the agent did: the coming of a pod does not count.
    eta_error: float | None = None
    trace: str = ""


class Waiter(Message, frozen=True, kw_only=True):
    """A request or a job that waited for a wake."""

    id: str
    tenant: str
    waited_s: float = 0.0


class WakeRecord(Message, frozen=True, kw_only=True):
    """A wake as the fleet remembers it. ``waiters`` are the first to report; ``waited`` counts all."""

    wake: Wake
    waited: int = 0
    waiters: tuple[Waiter, ...] = ()


class Receipt(Message, frozen=True, kw_only=True):
    """What happened to one request, for ``GET /v1/requests/{id}``. Readable for an hour; by its own tenant only."""

    id: str
    tenant: str
    model: str  # as asked
    served_model: str
    path: str
    stream: bool
    state: str  # waiting | running | completed | failed | aborted
    start: str  # warm | cold | queued
    created_ms: int
    replica: str | None = None
    worker: str | None = None
    tier: Tier | None = None
    status: int = 0
    error: str | None = None  # code
    waited_s: float = 0.0  # in the queue, loading included
    first_byte_s: float | None = None
    total_s: float = 0.0
    attempts: int = 1
    timings: tuple[PhaseTiming, ...] = ()
    bytes_out: int = 0
    wake: Wake | None = None  # the one that it waited for
    fallback: str = ""  # why `served_model` is not the one asked for: a reason of rewarm.fallback
    waited_for: tuple[str, ...] = ()  # why it did not load at once, one after the other: see Explanation
