"""Everything that crosses Redis or a pipe between our processes, as typed msgpack.

Each message is a frozen :class:`msgspec.Struct` with a schema version ``v``; :func:`decode` refuses a version it does
not know (:class:`UnknownSchema`) instead of guessing. Times called ``*_ms`` are milliseconds of Redis ``TIME`` unless
said otherwise; durations are ``*_s``; sizes ``*_bytes``.

msgspec writes the msgpack format and validates the types on the way in: one declaration is schema, codec and check.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from rewarm.states import FailureReason, ReplicaState, Tier

SCHEMA_VERSION = 1


class UnknownSchema(ValueError):
    """A message of another schema version, or bytes that are no message of ours."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    v: int = SCHEMA_VERSION


# --- progress ------------------------------------------------------------------------------------------------------


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


# --- what the leader publishes ---------------------------------------------------------------------------------------


class ReplicaSpec(Message, frozen=True, kw_only=True):
    """Everything an agent needs to run a replica; its hash tells whether a running one is still the wanted one."""

    model: str
    engine: str  # "vllm" | "torch" | "command" | "remote"
    served_names: tuple[str, ...]  # the model's name first, then its aliases
    slots: int
    source: str | None = None  # folder of the checkpoint, absolute
    context_length: int | None = None
    dtype: str | None = None
    command: tuple[str, ...] = ()
    port: int | None = None  # of a `command` engine that takes none from us
    readiness_path: str = "/health"
    stop_command: tuple[str, ...] = ()
    upstream_model: str | None = None  # the name a `command` engine knows the model by
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    memory_bytes: int | None = None  # the whole need; estimated by the agent when None
    reserve_fraction: float = 0.25
    devices: tuple[str, ...] = ()  # "ram", or GPUs by index or UUID; none: what the engine and the machine have
    gpus: int = 0  # how many GPUs, where they are not named; 0: one, or none
    memory_limit_bytes: int | None = None  # of RAM; None: from the need; 0: none
    cpus: float | None = None  # cores' time
    load_bandwidth: float | None = None  # bytes/s that a load may read; None: no limit
    load_io_class: str | None = None  # "idle" | "best-effort"
    phase_stall_s: dict[str, float] = {}  # by ReplicaState value: longest time without progress
    answer_stall_s: float = 120.0
    drain_deadline_s: float = 300.0
    stop_grace_s: float = 5.0
    verify: bool = True
    snapshot: str = "auto"  # "weights": without compile caches; "off": always from the checkpoint
    batch_window_s: float = 0.0  # of a `torch` engine: how long a request waits for others to share its forward pass
    threads: int | None = None  # of a `torch` engine


class ModelPolicy(Message, frozen=True, kw_only=True):
    """The part of a model's configuration that applies at once, without a new replica."""

    min_replicas: int = 0
    max_replicas: int = 1
    idle_after_s: float = 300.0
    scale_up_waiting_per_slot: float = 2.0
    patience_s: float = 600.0
    load_attempts: int = 2
    retry_backoff_s: float = 1.0
    failure_memory_s: float = 30.0
    max_waiting: int = 1000
    unlisted: bool = False  # not in the list of models, served all the same
    sleep_after_s: float = 60.0
    sleep_level: int = 1
    priority: int = 1  # 0 is the highest: who yields when memory is short
    pinned: bool = False  # once loaded, neither evicted nor idle
    fallback: tuple[str, ...] = ()  # models that answer instead, the whole chain: see rewarm.fallback
    fallback_after_s: float | None = None  # they do when it needs more than this; None: more than the request may wait
    canary_every_s: float | None = None  # how often a cold one is woken to see that it can be; None: never


class RemoteSpec(Message, frozen=True, kw_only=True):
    """Somebody else's API. What goes with every engine (slots, silence, the upstream's name) is in the ``spec``."""

    url: str  # its base, as https://host/v1
    key_env: str | None = None  # the variable that holds the key, in the environment of gateways and workers
    connect_timeout_s: float = 5.0
    ca_file: str | None = None  # PEM, on gateways and workers


class Capabilities(Message, frozen=True, kw_only=True):
    """What a model can answer. None: not known, and taken for able."""

    can: tuple[str, ...] | None = None  # of rewarm.config.named.Capability
    context_length: int | None = None  # tokens, prompt and answer together


class CatalogueEntry(Message, frozen=True, kw_only=True):
    model: str
    aliases: tuple[str, ...]
    spec: ReplicaSpec
    spec_hash: str
    policy: ModelPolicy
    remote: RemoteSpec | None = None  # of `engine: remote`, which has no replicas
    capabilities: Capabilities = Capabilities()
    created_s: int = 0  # for /v1/models


class Want(Message, frozen=True, kw_only=True):
    """What the leader wants of one replica on one worker. Agents refuse an older ``term``."""

    replica: str
    worker: str
    model: str
    spec: ReplicaSpec
    spec_hash: str
    state: ReplicaState  # READY, ASLEEP (once it is idle), or STOPPED (drain first)
    term: int
    # The run of the worker's agent that this was decided about. An agent started since leaves it alone: what the old
    # one ran is gone, and the leader decides anew; both at once would be two loads.
    boot: str = ""
    # A run of that agent which must not take it although `boot` is empty: its pod leaves, and the next one is meant.
    not_boot: str = ""
    attempt: int = 1
    deaths: int = 0  # workers in a row that died while they loaded the model
    not_before_ms: int = 0  # backoff of a retry
    # For STOPPED and ASLEEP: only if the gate's last activity still is this value: a request that came in between makes
    # it void.
    if_last_activity_ms: int | None = None
    # For ASLEEP: the wake that this ends. One that happened since, by a request, is left alone.
    if_ready_at_ms: int = 0
    sleep_level: int = 1
    # For ASLEEP: whether a request may wake it without asking the leader. Not where others wait for the memory: from
    # this want on its requests queue, so that it comes to rest although more of them arrive.
    may_wake: bool = True
    reason: str = ""


class PlaceStatus(Message, frozen=True, kw_only=True):
    """The breaker of one model on one worker: open until ``open_until_ms``, then half-open for one probing load.

    A load that becomes ready closes it: the entry goes.
    """

    worker: str
    failures: int = 0  # failed loads in a row
    open_until_ms: int = 0
    failure: Failure | None = None  # the last one


class ModelStatus(Message, frozen=True, kw_only=True):
    """The leader's memory of a model's failures: requests fail at once until ``failed_until_ms``.

    ``failure`` None: the model as a whole has not failed, only loads on some of its ``places`` have.
    """

    model: str
    failed_until_ms: int = 0
    failure: Failure | None = None
    attempts: int = 0
    places: tuple[PlaceStatus, ...] = ()


class Explanation(Message, frozen=True, kw_only=True):
    """Why a model that is wanted does not load yet, in the leader's words."""

    model: str
    text: str
    since_ms: int = 0
    worker: str = ""  # where it is to run, as far as that is decided
    yields: tuple[str, ...] = ()  # models that give up their room for it


class Canary(Message, frozen=True, kw_only=True):
    """What is known of a model's way from cold to ready: the leader's last try, or a wake that somebody asked for."""

    model: str
    state: str  # running | passed | failed | unknown (cut short)
    at_ms: int  # when it began, or ended
    failures: int = 0  # tries in a row
    message: str = ""  # why it failed


# --- what workers publish --------------------------------------------------------------------------------------------


class ReplicaReport(Message, frozen=True, kw_only=True):
    """One replica in a worker's heartbeat."""

    replica: str
    model: str
    spec_hash: str
    state: ReplicaState
    term: int
    attempt: int = 1
    endpoint: str | None = None  # "unix:/path" or "tcp:host:port", set once ready
    slots: int = 0
    in_flight: int = 0
    reserved: int = 0
    last_activity_ms: int = 0  # start of ready, then the last completion
    ready_at_ms: int = 0
    served: int = 0
    memory_bytes: int = 0  # PSS of the process group, or the device's share
    need_bytes: int = 0  # what the ledger counted
    needs: dict[str, int] = {}  # of it, by device
    pid: int | None = None
    tier: Tier = Tier.COLD
    weights: str = ""  # what they were loaded from: "source", or a flavour and the snapshot's name
    timings: tuple[PhaseTiming, ...] = ()
    progress: Progress | None = None
    failure: Failure | None = None
    reason: str = ""  # why it drains or stopped
    cause: str = ""  # what it was woken for, in the leader's words
    tier_reason: str = ""  # why it did not start from a better tier; empty where it did, or none is set up
    waits_for_room: bool = False  # to load or to wake: memory that others hold
    can_sleep: bool = False
    no_sleep: str = ""  # why it cannot
    keep_alive_s: float | None = None  # as its last request to say so had it; below 0: for ever
    eta_error: float | None = None  # see Wake
    trace: str = ""  # W3C traceparent of the wake's span, where spans are sent


class PreparedReport(Message, frozen=True, kw_only=True):
    """A model in a worker's pool. ``ready``: processes that wait for it."""

    model: str
    state: str  # ready | waiting | refused | unsuitable
    reason: str = ""
    ready: int = 0


class PoolReport(Message, frozen=True, kw_only=True):
    """A worker's pool of one kind of engine. Counts are since the agent started."""

    kind: str
    state: str  # ready | starting | waiting | failed | no_room | off
    reason: str = ""  # why it is not ready
    pid: int | None = None
    versions: dict[str, str] = {}
    memory_bytes: int = 0  # PSS of all its processes
    prepared: tuple[PreparedReport, ...] = ()
    pooled: int = 0  # starts from it
    plain: int = 0  # starts that it could not serve
    zygotes: int = 0  # times that it was made


class DeviceReport(Message, frozen=True, kw_only=True):
    """Memory of one device of a worker. A replica is counted where its ``needs`` say."""

    id: str  # "ram", or a GPU's UUID
    kind: str  # ram | gpu
    name: str = ""
    index: int | None = None  # of a GPU, in NVML's order
    total_bytes: int = 0
    budget_bytes: int = 0
    promised_bytes: int = 0  # to replicas, what they need or already use
    used_bytes: int = 0  # by replicas and the pool, measured
    others_bytes: int = 0  # by processes that are not this worker's, measured
    free_bytes: int = 0  # what a new replica could have
    state: str = "ok"  # ok | lost
    reason: str = ""  # why it is lost


class WorkerBeat(Message, frozen=True, kw_only=True):
    """A worker's heartbeat: capacity and every replica it knows, ended ones until the leader has removed their want.

    ``memory_*`` are sums over its GPUs, or of RAM where it has none: what one model can have only ``devices`` tell."""

    worker: str
    boot: str
    host: str  # of a pod its address
    pid: int
    memory_budget_bytes: int
    memory_free_bytes: int  # budget less what its replicas and others use
    replicas: tuple[ReplicaReport, ...] = ()
    devices: tuple[DeviceReport, ...] = ()
    draining: bool = False
    pools: tuple[PoolReport, ...] = ()
    only: str = ""  # the one model that it serves, and one replica of it: a pod's worker
    # The leader's word for a place whose pod is not there: no agent speaks, and `boot` is empty.
    absent: bool = False
    since_ms: int = 0  # when this run of it began
    leaving: str = ""  # of an absent one: the boot of its last pod, which is on its way out and takes nothing new
    at_ms: int = 0  # stamped by Redis when written


class Wake(Message, frozen=True, kw_only=True):
    """The receipt of one wake: what it was made of, from the agent's decision to the first verified answer.

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
    # little. None where nothing was told.
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


# --- tickets ---------------------------------------------------------------------------------------------------------


class Ticket(Message, frozen=True, kw_only=True):
    """A held request. Its body stays in the gateway that holds the connection."""

    id: str
    model: str
    tenant: str
    gateway: str  # boot id
    band: int  # 0 is served first
    weight: float = 1.0
    cost: float = 1.0
    bytes: int = 0
    again: str | None = None  # digest of (key, body): finds the place an abandoned request kept


class Grant(Message, frozen=True, kw_only=True, tag="grant"):
    """A reserved slot offered to a held request: redeem it at ``endpoint`` with the header ``X-Rewarm-Grant``."""

    ticket: str
    model: str
    replica: str
    endpoint: str
    grant: str
    expires_ms: int
    waited_ms: int = 0


class TicketFailed(Message, frozen=True, kw_only=True, tag="failed"):
    """The ticket left the queue without a grant: ``code`` is one of ``rewarm.errors``."""

    ticket: str
    code: str
    message: str
    failure: Failure | None = None


GatewayEvent = Grant | TicketFailed


# --- receipts --------------------------------------------------------------------------------------------------------


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


# --- the operator, and what machines remember -------------------------------------------------------------------------


class Command(Message, frozen=True, kw_only=True):
    """``rewarm wake MODEL``, ``sleep MODEL``, ``drain WORKER``: for the leader."""

    kind: Literal["wake", "sleep", "drain"]
    target: str
    at_ms: int = 0


class PhaseHistory(Message, frozen=True, kw_only=True):
    """The last durations of one phase of a model's load on one machine, in seconds, oldest first."""

    seconds: tuple[float, ...] = ()


M = TypeVar("M", bound=Message)
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """Raise :class:`UnknownSchema` for foreign bytes, wrong types or another schema version."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        message: M = decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise UnknownSchema(f"not a {getattr(kind, '__name__', kind)}: {error}") from error
    if message.v != SCHEMA_VERSION:
        raise UnknownSchema(f"schema version {message.v}, this process speaks {SCHEMA_VERSION}")
    return message


def decode_gateway_event(data: bytes) -> GatewayEvent:
    return decode(data, GatewayEvent)  # type: ignore[arg-type]  # a union is no class


def to_json(message: Message) -> dict[str, Any]:
    """Plain dictionaries for HTTP and ``--json``, without the schema version."""
    out: dict[str, Any] = msgspec.to_builtins(message)
    out.pop("v", None)
    return out
