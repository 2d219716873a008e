"""What workers publish: replicas, pools, devices, in one heartbeat."""

from __future__ import annotations

from rewarm.messages.codec import Message
from rewarm.messages.loads import Failure, PhaseTiming, Progress
from rewarm.states import ReplicaState, Tier


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
    adapters: dict[str, str] = {}  # name → why it serves its base without this one; empty: it serves it


class PreparedReport(Message, frozen=True, kw_only=True):
    """A model in a worker's pool. ``ready``: processes that wait for it.

    *refused*: its files are missing or broken, or preparing it failed. *unsuitable*: its specification does not go with
    a pool.
    """

    model: str
    state: str  # ready | waiting | refused | unsuitable
    reason: str = ""  # why it is not ready, or is prepared in parts only
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
    """A worker's heartbeat: its devices, and its replicas, ended ones until the leader has removed their want."""

    worker: str
    boot: str
    host: str  # of a pod its address
    pid: int
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
