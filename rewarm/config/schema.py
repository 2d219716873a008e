"""What a configuration may say: every field, its unit, its default. Unknown fields are errors."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, LiteralString

from pydantic import Discriminator, Field, Tag, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from rewarm.config.adapter import AdapterModel, adapter_problems
from rewarm.config.base import Duration, Section, Size, Source, seconds
from rewarm.config.named import NamedModel
from rewarm.config.placement import PlacementConfig
from rewarm.config.pods import KnativeConfig
from rewarm.config.processes import (
    DEVICE,
    NAME,
    GatewayConfig,
    PoolConfig,
    ProgressMode,
    RedisConfig,
    SnapshotsConfig,
    TracingConfig,
    WorkerConfig,
    is_loopback,
)
from rewarm.config.remote import RemoteModel
from rewarm.fallback import chain_problems

BANDS: dict[str, int] = {"high": 0, "normal": 1, "low": 2}
"""Priority bands of interactive requests, strict, served in this order."""

Priority = Literal["high", "normal", "low"]
HandOff = Literal["never", "ask", "always"]
"""When a held request becomes a job at the end of its patience: never, if it asked for that, or always."""

_HOST = re.compile(r"^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$")
_HEX64 = re.compile(r"^[0-9a-f]{64}$")


class ModelConfig(NamedModel):
    """Fields that every engine of ours shares."""

    slots: int = Field(default=4, ge=1, le=1024)  # requests the engine runs at once
    memory: Size | None = None  # whole need; by default weights + KV + reserve, estimated on the worker
    reserve: float = Field(default=0.25, ge=0, le=2)  # share of the estimated need added to it, for what nobody counts
    device: tuple[str, ...] = ()  # ram, or GPUs by index or UUID; by default what the engine and the machine have
    gpus: int | None = Field(default=None, ge=1, le=64)  # how many it is spread over; which ones is the worker's to say
    memory_limit: Size | Literal["off"] | None = Field(default=None)  # of RAM; by default well above its need
    cpus: float | None = Field(default=None, gt=0, le=4096)  # cores' time that it may use
    load_bandwidth: Size | None = Field(default=None, ge=2**20)  # bytes a second that a load may read
    load_io_class: Literal["idle", "best-effort"] | None = None  # of a load's reads
    env: dict[str, str] = {}
    args: tuple[str, ...] = ()
    min_replicas: int = Field(default=0, ge=0)
    min_asleep: int = Field(default=0, ge=0)  # loaded ahead and left to sleep; those of min_replicas count
    max_replicas: int = Field(default=1, ge=1)
    priority: Priority = "normal"  # of the model: who yields when memory is short
    pinned: bool = False  # once loaded it stays
    idle_after: Duration = seconds(300)  # without requests: then it stops
    sleep_after: Duration = Field(default=seconds(60), ge=seconds(0))  # then it sleeps, where it can
    sleep_level: Literal[1, 2] = 1  # 2: the weights leave the page cache too
    scale_up_waiting_per_slot: float = Field(default=2.0, gt=0)
    load_attempts: int = Field(default=2, ge=1, le=10)
    retry_backoff: Duration = seconds(1)
    failure_memory: Duration = seconds(30)
    drain_deadline: Duration = seconds(300)
    stop_grace: Duration = Field(default=seconds(5), gt=seconds(0), le=seconds(600))  # from SIGTERM to SIGKILL
    starting_stall: Duration = seconds(120)
    restoring_stall: Duration = seconds(60)
    initialising_stall: Duration = seconds(180)
    warming_stall: Duration = seconds(120)
    verifying_stall: Duration = seconds(60)
    verify: bool = True
    # How often a cold model is woken to see that it can be. None: daily where it has a fallback, else never; 0: never.
    canary_every: Duration | None = Field(default=None, ge=seconds(0))

    @field_validator("device", mode="before")
    @classmethod
    def _one_device(cls, value: object) -> object:
        many = value if isinstance(value, list | tuple) else (value,)
        return tuple(str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in many)

    @field_validator("device")
    @classmethod
    def _known_devices(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if not DEVICE.match(one):
                raise ValueError(f"{one!r}: write ram, a GPU's index, or its UUID (GPU-…)")
        if len(set(value)) != len(value):
            raise ValueError("a device is given twice")
        if "ram" in value and len(value) > 1:
            raise ValueError("either ram or GPUs")
        return value

    @model_validator(mode="after")
    def _gpus(self) -> ModelConfig:
        if self.gpus is not None and self.device and self.gpus != len(self.device):
            raise ValueError(f"gpus {self.gpus} contradicts `device`, which names {len(self.device)}: give one of them")
        if self.gpus is not None and "ram" in self.device:
            raise ValueError("gpus is for GPUs, and `device` says ram")
        return self

    @model_validator(mode="after")
    def _replicas(self) -> ModelConfig:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}")
        if self.min_asleep > self.max_replicas:
            raise ValueError(f"min_asleep {self.min_asleep} is above max_replicas {self.max_replicas}")
        return self

    @model_validator(mode="after")
    def _sleepers(self) -> ModelConfig:
        if not self.min_asleep:
            return self
        if not isinstance(self, VllmModel):
            raise ValueError("min_asleep: only a vllm engine can sleep; min_replicas keeps this one loaded, awake")
        if self.pinned:
            raise ValueError("min_asleep: a pinned model does not sleep; take pinned away, or set min_replicas")
        if "--enable-sleep-mode" not in self.args and (self.snapshot == "off" or not self.verify):
            off = "snapshot: off" if self.snapshot == "off" else "verify: false"
            raise ValueError(f"min_asleep: with {off} no snapshot is made, without which it cannot sleep")
        return self


class VllmModel(ModelConfig):
    engine: Literal["vllm"]
    source: Source  # folder with config.json, tokenizer and safetensors, or hf:org/name@revision
    context_length: int | None = Field(default=None, ge=16)
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    snapshot: Literal["auto", "weights", "off"] = "auto"  # made after the first load; weights: no compile caches


class TorchModel(ModelConfig):
    """transformers in one process: a small engine for laptops, embeddings and tests."""

    engine: Literal["torch"]
    source: Source  # folder with config.json, tokenizer and safetensors, or hf:org/name@revision
    context_length: int | None = Field(default=None, ge=16)
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"  # auto: as config.json says, else as stored
    batch_window: Duration = Field(default=seconds(0.01), ge=seconds(0), le=seconds(1))
    threads: int | None = Field(default=None, ge=1, le=1024)  # by default all cores but one
    snapshot: Literal["auto", "off"] = "auto"  # auto: made after the first load, loaded from afterwards

    @field_validator("args")
    @classmethod
    def _no_args(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value:
            raise ValueError("the torch engine takes no arguments")
        return value


class CommandModel(ModelConfig):
    """Any OpenAI-compatible server. ``${PORT}`` in ``cmd``, ``stop_cmd`` and ``env`` is replaced by a free loopback
    port, ``${SOURCE}`` by the path of ``source`` on the worker."""

    engine: Literal["command"]
    port: int | None = Field(default=None, ge=1, le=65535)  # where the command takes none from us
    cmd: tuple[str, ...]
    readiness_path: str = Field(default="/health", pattern="^(/.*|none)$")  # none: ready once its port is open
    stop_cmd: tuple[str, ...] = ()  # instead of SIGTERM; ${PID} is the command's
    upstream_model: str | None = None  # the name the server knows the model by, where it is another one
    source: Source | None = None  # weights, for byte progress and memory; ${SOURCE} in cmd

    @field_validator("cmd", "stop_cmd", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        import shlex

        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("cmd")
    @classmethod
    def _takes_port(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not value:
            raise ValueError("name the program to run")
        parts = (*value, *info.data.get("args", ()), *info.data.get("env", {}).values())
        if info.data.get("port") is None and not any("${PORT}" in part for part in parts):
            raise ValueError("the command must take its port from ${PORT}, or name it in `port`")
        return value

    @field_validator("port")
    @classmethod
    def _of_one(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("max_replicas", 1) > 1:
            raise ValueError("only one replica can have this port: set max_replicas: 1, or use ${PORT}")
        return value


AnyModel = VllmModel | TorchModel | CommandModel | RemoteModel | AdapterModel


def _kind(value: object) -> str | None:
    """Of a model as the file has it, or of one that is parsed."""
    if isinstance(value, dict):
        if "adapter_of" in value:
            return "adapter"
        return None if value.get("engine") is None else str(value["engine"])
    return "adapter" if isinstance(value, AdapterModel) else getattr(value, "engine", None)


_Model = Annotated[
    Annotated[VllmModel, Tag("vllm")]
    | Annotated[TorchModel, Tag("torch")]
    | Annotated[CommandModel, Tag("command")]
    | Annotated[RemoteModel, Tag("remote")]
    | Annotated[AdapterModel, Tag("adapter")],
    Discriminator(_kind),
]


class WebhooksConfig(Section):
    """Calls to a client's own URL when its job changes state."""

    # Signing secrets: id → the environment variable that holds it. `default` signs where a job names none.
    secrets: dict[str, str] = {"default": "REWARM_WEBHOOK_SECRET"}
    allow_private: bool = False  # loopback, private and link-local addresses as targets
    allow: tuple[str, ...] = ()  # networks and host names that may be called although they are not public
    public_url: str | None = None  # where clients reach the gateways: put before the paths in a message
    timeout: Duration = Field(default=seconds(10), gt=seconds(0))  # of one try
    max_tries: int = Field(default=20, ge=1, le=100)
    give_up_after: Duration = Field(default=seconds(24 * 3600), gt=seconds(0), le=seconds(7 * 86400))
    concurrency: int = Field(default=32, ge=1, le=1000)  # deliveries under way, per gateway
    per_host: int = Field(default=4, ge=1, le=100)  # of these to one host

    @field_validator("allow")
    @classmethod
    def _entries(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                ipaddress.ip_network(entry)
            except ValueError as error:
                if not _HOST.match(entry) or entry.rpartition(".")[2].isdigit():
                    raise ValueError(f"{entry!r} is no network and no host name: {error}") from error
        return value

    @field_validator("public_url")
    @classmethod
    def _base(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("write https://host or https://host/path")
        return value


class JobsConfig(Section):
    """Durable jobs. Their bodies and results lie in Redis, so everything is bounded in bytes."""

    max_body: Size = Field(default=2**20, ge=1024, le=8 * 2**20)
    max_result: Size = Field(default=8 * 2**20, ge=1024, le=64 * 2**20)
    max_bytes: Size = Field(default=2 * 2**30, ge=2**20)  # bodies, output and results of all tenants
    max_bytes_per_tenant: Size = Field(default=512 * 2**20, ge=2**20)
    max_per_tenant: int = Field(default=100_000, ge=1)  # jobs that wait or run
    retention: Duration = Field(default=seconds(7 * 86400), ge=seconds(60))  # of the result, after the end
    max_attempts: int = Field(default=3, ge=1, le=100)
    max_loads: int = Field(default=3, ge=1, le=100)  # failed loads of its model that a job waits through
    max_run: Duration = Field(default=seconds(3600), gt=seconds(0))  # of one attempt
    hand_off: HandOff = "ask"
    webhooks: WebhooksConfig = WebhooksConfig()


class FilesConfig(Section):
    """Input and output files of batches. They lie in Redis, so everything is bounded in bytes."""

    max_file: Size = Field(default=16 * 2**20, ge=1024, le=64 * 2**20)  # of an upload
    max_bytes: Size = Field(default=2**30, ge=2**20)  # of all tenants
    max_bytes_per_tenant: Size = Field(default=256 * 2**20, ge=2**20)  # no upload beyond it; output to twice as much
    retention: Duration = Field(default=seconds(30 * 86400), ge=seconds(60))  # of uploads; of output after the end


class KeyConfig(Section):
    """An API key. Only its SHA-256 is written down: ``printf %s KEY | sha256sum``."""

    name: str  # the tenant
    sha256: str
    priority: Priority = "normal"
    job_priority: Priority = "high"  # the highest that its jobs may ask for
    weight: float = Field(default=1.0, gt=0, le=1000)
    concurrency: int | None = Field(default=None, ge=1)  # running and waiting together
    requests_per_minute: int | None = Field(default=None, ge=1)  # jobs handed in count, lines of batches do not
    tokens_per_minute: int | None = Field(default=None, ge=1)  # of prompts and answers
    max_context: int | None = Field(default=None, ge=1)  # tokens of prompt and answer of one request
    max_output_tokens: int | None = Field(default=None, ge=1)  # that one request may ask for
    models: tuple[str, ...] | None = None
    progress: ProgressMode | None = None
    operator: bool = False  # may also wake, put to sleep and drain

    @field_validator("sha256")
    @classmethod
    def _hex(cls, value: str) -> str:
        if not _HEX64.match(value):
            raise ValueError("64 lower-case hex digits, from: printf %s KEY | sha256sum")
        return value


class Config(Section):
    fleet: str = "rewarm"  # names all keys in Redis: fleets may share a server
    state_dir: Path | None = None
    secret_env: str = "REWARM_FLEET_SECRET"
    redis: RedisConfig = RedisConfig()
    gateway: GatewayConfig = GatewayConfig()
    worker: WorkerConfig = Field(default_factory=WorkerConfig)
    snapshots: SnapshotsConfig = SnapshotsConfig()
    pool: PoolConfig = PoolConfig()
    placement: PlacementConfig = PlacementConfig()
    models: dict[str, _Model] = {}
    keys: tuple[KeyConfig, ...] = ()
    jobs: JobsConfig = JobsConfig()
    files: FilesConfig = FilesConfig()
    tracing: TracingConfig = TracingConfig()
    knative: KnativeConfig = KnativeConfig()

    @property
    def local_models(self) -> dict[str, VllmModel | TorchModel | CommandModel]:
        """Those that have replicas on workers of this fleet."""
        return {n: m for n, m in self.models.items() if not isinstance(m, RemoteModel | AdapterModel)}

    def adapters_of(self, base: str) -> dict[str, AdapterModel]:
        return {n: m for n, m in self.models.items() if isinstance(m, AdapterModel) and m.adapter_of == base}

    @field_validator("fleet")
    @classmethod
    def _fleet(cls, value: str) -> str:
        if not re.match(r"^[A-Za-z0-9_-]{1,40}$", value):
            raise ValueError("letters, digits, _ and - only, at most 40")
        return value

    @model_validator(mode="after")
    def _safe(self) -> Config:
        if not self.keys and not is_loopback(self.gateway.host):
            what = f"without `keys` the gateway listens on loopback only, not on {self.gateway.host}: add a key"
            raise _placed([(("gateway", "listen"), what)], "unsafe_listen")
        return self

    @model_validator(mode="after")
    def _names(self) -> Config:
        taken: dict[str, str] = {}
        for model, entry in self.models.items():
            for name in (model, *entry.aliases):
                if not NAME.match(name):
                    raise ValueError(f"models.{model}: {name!r}: letters, digits and . _ : / - only, at most 96")
                if name in taken:
                    raise ValueError(f"models.{model}: the name {name!r} is taken by models.{taken[name]}")
                taken[name] = model
        seen: set[str] = set()
        for key in self.keys:
            if key.name in seen:
                raise ValueError(f"keys: two keys are named {key.name!r}")
            seen.add(key.name)
            for name in key.models or ():
                if name not in taken:
                    raise ValueError(f"keys: {key.name!r} allows {name!r}, which is no model")
        for name in self.knative.models:
            if name not in self.models:
                raise ValueError(f"knative.models: {name!r} is no model")
            if isinstance(self.models[name], AdapterModel):
                raise ValueError(f"knative.models: {name!r} is an adapter: its base has the pods")
        return self

    @model_validator(mode="after")
    def _adapters(self) -> Config:
        problems = list(adapter_problems(self.models))
        if problems:
            raise _placed([(("models", name, "adapter_of"), what) for name, what in problems], "adapter")
        return self

    @model_validator(mode="after")
    def _fallbacks(self) -> Config:
        chains = {name: model.fallback for name, model in self.models.items()}
        aliases = {alias: name for name, model in self.models.items() for alias in model.aliases}
        problems = chain_problems(chains, aliases)
        if problems:
            raise _placed([(("models", name, "fallback"), what) for name, what in problems], "fallback")
        return self


def _placed(problems: list[tuple[tuple[int | str, ...], str]], kind: LiteralString) -> ValidationError:
    """Errors of the whole configuration, each with its place in the file, which a ValueError would not have."""
    details = [
        InitErrorDetails(type=PydanticCustomError(kind, "{what}", {"what": what}), loc=at, input=None)
        for at, what in problems
    ]
    return ValidationError.from_exception_data("Config", details)
