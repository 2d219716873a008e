"""Configuration → what the leader publishes: one entry a model, split into specification (needs a new replica when it
changes) and policy (applies at once)."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from msgspec.structs import replace

from rewarm.config.adapter import AdapterModel
from rewarm.config.capabilities import capabilities_of
from rewarm.config.remote import RemoteModel
from rewarm.config.schema import BANDS, AnyModel, CommandModel, Config, TorchModel, VllmModel
from rewarm.fallback import expand
from rewarm.messages import AdapterSpec, CatalogueEntry, ModelPolicy, RemoteSpec, ReplicaSpec, encode
from rewarm.states import ReplicaState

DAILY = timedelta(days=1)
"""How often the cold path of a model with a fallback is tried out, unless the configuration says."""


def catalogue(config: Config) -> dict[str, CatalogueEntry]:
    """What a model can do is looked up in its source, where that is on this machine; nothing else is read."""
    chains = {name: model.fallback for name, model in config.models.items()}
    aliases = {alias: name for name, model in config.models.items() for alias in model.aliases}
    return {name: _entry(config, name, expand(name, chains, aliases)) for name in config.models}


def spec_hash(spec: ReplicaSpec) -> str:
    return hashlib.sha256(encode(spec)).hexdigest()[:16]


def _entry(config: Config, name: str, chain: tuple[str, ...]) -> CatalogueEntry:
    model = config.models[name]
    if isinstance(model, AdapterModel):
        return _adapter(config, name, model, chain)
    spec = _remote_spec(name, model) if isinstance(model, RemoteModel) else _spec(config, name, model)
    return CatalogueEntry(
        model=name,
        aliases=model.aliases,
        spec=spec,
        spec_hash=spec_hash(spec),
        policy=_policy(model, chain),
        remote=_remote(model) if isinstance(model, RemoteModel) else None,
        capabilities=capabilities_of(model),
    )


def _adapter(config: Config, name: str, model: AdapterModel, chain: tuple[str, ...]) -> CatalogueEntry:
    """Its ``spec`` starts nothing: it says what is asked of every entry, under which names and in what engine."""
    base = _entry(config, model.adapter_of, ())
    own = "answer_stall" in model.model_fields_set
    spec = ReplicaSpec(
        model=name,
        engine=base.spec.engine,
        served_names=(name, *model.aliases),
        slots=base.spec.slots,
        source=str(model.source),
        context_length=base.spec.context_length,
        answer_stall_s=model.answer_stall.total_seconds() if own else base.spec.answer_stall_s,
    )
    can = base.capabilities
    if model.capabilities is not None:
        can = replace(can, can=tuple(sorted(set(model.capabilities))))
    return CatalogueEntry(
        model=name,
        aliases=model.aliases,
        spec=spec,
        spec_hash=spec_hash(spec),
        policy=replace(_policy(model, chain), priority=base.policy.priority, pinned=base.policy.pinned),
        capabilities=can,
        base=model.adapter_of,
    )


def _remote(model: RemoteModel) -> RemoteSpec:
    return RemoteSpec(
        url=model.url,
        key_env=model.key_env,
        connect_timeout_s=model.connect_timeout.total_seconds(),
        ca_file=None if model.ca_file is None else str(model.ca_file),
    )


def _remote_spec(name: str, model: RemoteModel) -> ReplicaSpec:
    return ReplicaSpec(
        model=name,
        engine="remote",
        served_names=(name, *model.aliases),
        slots=model.concurrency,
        context_length=model.context_length,
        upstream_model=model.upstream_model,
        answer_stall_s=model.answer_stall.total_seconds(),
    )


def _spec(config: Config, name: str, model: VllmModel | TorchModel | CommandModel) -> ReplicaSpec:
    adapters = sorted(config.adapters_of(name).items())
    return ReplicaSpec(
        model=name,
        engine=model.engine,
        served_names=(name, *model.aliases),
        slots=model.slots,
        source=None if model.source is None else str(model.source),
        context_length=None if isinstance(model, CommandModel) else model.context_length,
        dtype=None if isinstance(model, CommandModel) else model.dtype,
        command=model.cmd if isinstance(model, CommandModel) else (),
        port=model.port if isinstance(model, CommandModel) else None,
        readiness_path=model.readiness_path if isinstance(model, CommandModel) else "/health",
        stop_command=model.stop_cmd if isinstance(model, CommandModel) else (),
        stop_grace_s=model.stop_grace.total_seconds(),
        upstream_model=model.upstream_model if isinstance(model, CommandModel) else None,
        args=model.args,
        env=dict(sorted(model.env.items())),
        memory_bytes=model.memory,
        reserve_fraction=model.reserve,
        devices=model.device,
        gpus=model.gpus or 0,
        memory_limit_bytes=0 if model.memory_limit == "off" else model.memory_limit,
        cpus=model.cpus,
        load_bandwidth=model.load_bandwidth,
        load_io_class=model.load_io_class,
        phase_stall_s={
            ReplicaState.STARTING.value: model.starting_stall.total_seconds(),
            ReplicaState.RESTORING.value: model.restoring_stall.total_seconds(),
            ReplicaState.INITIALISING.value: model.initialising_stall.total_seconds(),
            ReplicaState.WARMING.value: model.warming_stall.total_seconds(),
            ReplicaState.VERIFYING.value: model.verifying_stall.total_seconds(),
        },
        answer_stall_s=model.answer_stall.total_seconds(),
        drain_deadline_s=model.drain_deadline.total_seconds(),
        verify=model.verify,
        snapshot="off" if isinstance(model, CommandModel) else model.snapshot,
        batch_window_s=model.batch_window.total_seconds() if isinstance(model, TorchModel) else 0.0,
        threads=model.threads if isinstance(model, TorchModel) else None,
        adapters=tuple(AdapterSpec(name=n, source=str(a.source)) for n, a in adapters),
    )


def _policy(model: AnyModel, chain: tuple[str, ...]) -> ModelPolicy:
    after = model.fallback_after
    shared = ModelPolicy(
        fallback=chain,
        fallback_after_s=None if after is None else after.total_seconds(),
        max_waiting=model.max_waiting,
        unlisted=model.unlisted,
    )
    if isinstance(model, RemoteModel | AdapterModel):
        return shared
    canary = DAILY if model.canary_every is None and chain else model.canary_every
    return replace(
        shared,
        min_replicas=model.min_replicas,
        min_asleep=model.min_asleep,
        max_replicas=model.max_replicas,
        idle_after_s=model.idle_after.total_seconds(),
        scale_up_waiting_per_slot=model.scale_up_waiting_per_slot,
        load_attempts=model.load_attempts,
        retry_backoff_s=model.retry_backoff.total_seconds(),
        failure_memory_s=model.failure_memory.total_seconds(),
        sleep_after_s=model.sleep_after.total_seconds(),
        sleep_level=model.sleep_level,
        canary_every_s=None if not canary else canary.total_seconds(),
        priority=BANDS[model.priority],
        pinned=model.pinned,
    )
