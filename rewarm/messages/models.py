"""What the leader publishes of the configuration: one model, in full."""

from __future__ import annotations

from rewarm.messages.codec import Message


class AdapterSpec(Message, frozen=True, kw_only=True):
    """A LoRA adapter that a replica serves beside its base, under its name alone: gateways know the aliases."""

    name: str
    source: str  # its folder, absolute


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
    adapters: tuple[AdapterSpec, ...] = ()


class ModelPolicy(Message, frozen=True, kw_only=True):
    """The part of a model's configuration that applies at once, without a new replica."""

    min_replicas: int = 0
    min_asleep: int = 0  # loaded ahead and left to sleep; those of min_replicas count
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
    base: str = ""  # of an adapter: the model that it is one of

    @property
    def home(self) -> str:
        """The model whose queue and replicas it has: its own name, of an adapter its base's."""
        return self.base or self.model

    @property
    def placed(self) -> bool:
        """Whether it has replicas of its own."""
        return self.remote is None and not self.base
