"""A replica's specification as vLLM's arguments: what the operator wrote in ``args``, then what rewarm decides
itself."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rewarm.messages import ReplicaSpec
from rewarm_vllm import LOAD_FORMAT

CPU_WORKER = "worker.engines.vllm.engine_core.cpu.ReportingCpuWorker"
GPU_WORKER = "worker.engines.vllm.engine_core.gpu.ReportingGpuWorker"

_OWNED: Mapping[str, str] = {
    "model": "set `source`",
    "model_tag": "set `source`",
    "served_model_name": "the model's name and its `aliases` are served",
    "max_model_len": "set `context_length`",
    "max_num_seqs": "set `slots`",
    "dtype": "set `dtype`",
    "gpu_memory_utilization": "set `memory`",
    "tensor_parallel_size": "set `gpus`, or name several in `device`",
    "kv_cache_memory_bytes": "set `memory`",
    "load_format": "rewarm's own loader counts the bytes",
    "model_loader_extra_config": "set `snapshot` and the section `snapshots`",
    "worker_cls": "rewarm's own worker class reports the load",
    "host": "the gate listens on a socket of its own",
    "port": "the gate listens on a socket of its own",
    "uds": "the gate listens on a socket of its own",
    "api_key": "the gateway checks API keys",
    "root_path": "the gateway forwards to the root",
    "ssl_keyfile": "the gate speaks plain HTTP inside the machine",
    "ssl_certfile": "the gate speaks plain HTTP inside the machine",
    "enable_lora": "configure a model with `adapter_of` for each adapter",
    "lora_modules": "configure a model with `adapter_of` for each adapter",
    "max_lora_rank": "it follows from the adapters",
    "max_loras": "it follows from the adapters and `slots`",
    "max_cpu_loras": "it follows from the adapters",
    "headless": "one host serves one engine",
    "api_server_count": "one host serves one engine",
    "grpc": "the gate speaks HTTP",
    "grpc_port": "the gate speaks HTTP",
}
"""vLLM's options that rewarm sets itself, and what to do instead."""


class ArgumentsRefused(Exception):
    """An argument is unknown, has a wrong value, or is not the operator's to set."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What the memory ledgers gave. ``kv_bytes`` is the cache's exact size on each device. ``device_fraction`` (GPU)
    is vLLM's share of each, weights included: it only refuses to start where less than that is free. ``ranks`` is how
    many devices a layer is spread over."""

    kv_bytes: int
    device_fraction: float | None = None
    ranks: int = 1


def refuse_owned(args: Sequence[str]) -> None:
    """The plain cases, at once: vLLM's parser, which also knows abbreviations, takes ten seconds to import."""
    for argument in args:
        if argument.startswith("--"):
            _refuse_if_owned(argument[2:].partition("=")[0].replace("-", "_"))


def _refuse_if_owned(name: str) -> None:
    if name in _OWNED:
        raise ArgumentsRefused(f"`args` may not set --{name.replace('_', '-')}: {_OWNED[name]}")


def parse(args: Sequence[str], *, cpu: bool) -> argparse.Namespace:
    """The operator's ``args`` through vLLM's own parser. Raise ArgumentsRefused with vLLM's words."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="args"))
    # Eager on the CPU: compiling takes 47 to 74 s for a third more tokens a second. `--no-enforce-eager` asks for it.
    # No seed: vLLM's own default would give the same answers, in the same order, after every wake.
    parser.set_defaults(use_tqdm_on_load=False, seed=None, **({"enforce_eager": True} if cpu else {}))
    parser.error = _refuse
    try:
        namespace: argparse.Namespace = parser.parse_args(list(args))
        validate_parsed_serve_args(namespace)
    except SystemExit as error:  # --help and --version print and leave
        raise ArgumentsRefused("`args` must be options of `vllm serve`") from error
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise ArgumentsRefused(f"`args`: {error}") from error
    for name in _OWNED:
        if getattr(namespace, name, None) != parser.get_default(name):
            _refuse_if_owned(name)
    return namespace


def any_seed() -> int:
    """Of an engine whose operator asked for none."""
    return secrets.randbits(31)


def _refuse(message: str) -> NoReturn:
    raise ArgumentsRefused(f"`args`: {message}")


def complete(
    namespace: argparse.Namespace, spec: ReplicaSpec, context: int, shares: Shares, *, cpu: bool, snapshots: str = ""
) -> None:
    """Set in place what rewarm decides. ``snapshots``: the store's folder; empty: none."""
    ours: dict[str, Any] = {
        "model": spec.source,
        "served_model_name": list(spec.served_names),
        "max_model_len": context,
        "max_num_seqs": spec.slots,
        "dtype": spec.dtype or "auto",
        "load_format": LOAD_FORMAT,
        "model_loader_extra_config": _loading(spec, snapshots),
        "worker_cls": CPU_WORKER if cpu else GPU_WORKER,
        "kv_cache_memory_bytes": shares.kv_bytes,
        "tensor_parallel_size": shares.ranks,
    }
    if shares.device_fraction is not None:
        ours["gpu_memory_utilization"] = shares.device_fraction
    for name, value in ours.items():
        setattr(namespace, name, value)


def _loading(spec: ReplicaSpec, snapshots: str) -> dict[str, Any]:
    if not snapshots or spec.snapshot == "off":
        return {"snapshots": False}
    return {"store": snapshots, "name": spec.model, "caches": spec.snapshot != "weights"}
