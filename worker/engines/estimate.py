"""What the agent's ledger reserves for a replica before anything is started, whichever its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rewarm.messages import ReplicaSpec
from rewarm.states import FailureReason
from rewarm.units import format_bytes
from snapshots import Checkpoint, CheckpointError, inspect
from worker.devices.device import RAM
from worker.devices.ledgers import Demand
from worker.engines.need import Need, NeverFits, vllm_need
from worker.engines.torch.need import torch_need
from worker.engines.vllm.environment import is_cpu_build

COMMAND_PROCESS_BYTES = 128 * 2**20
"""A server's own code and buffers, without weights."""

COMMAND_HOST_BYTES = 512 * 2**20
"""In RAM, of a server on a GPU: its weights pass through it. An assumption."""

UNKNOWN_BYTES = 512 * 2**20
"""For a `command` model that names neither `memory` nor `source`: somebody has to say a number."""


class CannotEstimate(Exception):
    """The load cannot succeed, whatever memory there is: weights missing or damaged, a contradiction."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Estimate:
    total_bytes: int
    weights_bytes: int = 0
    kv_bytes: int = 0
    read_bytes: int = 0  # what a load reads from disk
    arithmetic: str = ""  # for people: the total and its parts
    gpus: int = 0  # the total lies on so many, a like share on each; 0: in RAM
    host_bytes: int = 0  # in RAM beside what the GPUs hold
    named: tuple[str, ...] = ()  # on these GPUs and no others
    assumed: bool = False  # nobody said anything that it could be estimated from

    @property
    def demand(self) -> Demand:
        if not self.gpus:
            return Demand(self.total_bytes, arithmetic=self.arithmetic)
        each = -(-self.total_bytes // self.gpus)
        words = f"{self.arithmetic}, of it {format_bytes(each)} on each" if self.gpus > 1 else self.arithmetic
        return Demand(self.host_bytes, self.gpus, each, self.named, words)


def estimate(spec: ReplicaSpec, gpus_here: int = 0) -> Estimate:
    """Reads headers and sizes only, milliseconds. ``gpus_here``: of this worker. Raise CannotEstimate."""
    try:
        return _ESTIMATES.get(spec.engine, _command)(spec, gpus_here)
    except CheckpointError as error:
        raise CannotEstimate(error.reason, str(error)) from error
    except NeverFits as error:
        raise CannotEstimate(FailureReason.NEVER_FITS, str(error)) from error


def gpus_of(spec: ReplicaSpec, by_default: int) -> int:
    """How many GPUs a specification asks for; 0: none."""
    if RAM in spec.devices:
        return 0
    return len(spec.devices) or spec.gpus or by_default


def _vllm(spec: ReplicaSpec, gpus_here: int) -> Estimate:
    cpu = is_cpu_build()
    gpus = gpus_of(spec, 0 if cpu else 1)
    if cpu and gpus:
        raise CannotEstimate(FailureReason.START_REFUSED, f"it is to run on {_named(spec)}: {_CPU_BUILD}")
    if not cpu and not gpus:
        raise CannotEstimate(FailureReason.START_REFUSED, "it is to run in RAM, and this vLLM is built for GPUs")
    checkpoint = _checkpoint(spec)
    return _of_checkpoint(spec, checkpoint, vllm_need(checkpoint, spec, gpus=gpus))


def _torch(spec: ReplicaSpec, gpus_here: int) -> Estimate:
    if gpus_of(spec, 0):
        raise CannotEstimate(FailureReason.START_REFUSED, f"it is to run on {_named(spec)}: {_TORCH_IN_RAM}")
    checkpoint = _checkpoint(spec)
    return _of_checkpoint(spec, checkpoint, torch_need(checkpoint, spec))


_CPU_BUILD = "this vLLM is built for the CPU (install rewarm with the extra vllm-gpu)"
_TORCH_IN_RAM = "the torch engine computes on the CPU only"


def _named(spec: ReplicaSpec) -> str:
    return f"GPU {', '.join(spec.devices)}" if spec.devices else f"{spec.gpus} GPUs"


def _checkpoint(spec: ReplicaSpec) -> Checkpoint:
    if spec.source is None:
        raise CannotEstimate(FailureReason.WEIGHTS_MISSING, f"model {spec.model!r} has no source")
    return inspect(Path(spec.source))


def _of_checkpoint(spec: ReplicaSpec, checkpoint: Checkpoint, need: Need) -> Estimate:
    return Estimate(
        need.total_bytes,
        need.weights_bytes,
        need.kv_bytes,
        checkpoint.file_bytes,
        f"{format_bytes(need.total_bytes)} (weights {format_bytes(need.weights_bytes)}{_adapters(need)}, "
        f"KV cache for {spec.slots} slots of {need.context} tokens {format_bytes(need.kv_bytes)}, "
        f"processes {format_bytes(need.overhead_bytes)}, reserve {format_bytes(need.reserve_bytes)})",
        need.gpus,
        need.host_bytes,
        spec.devices if need.gpus else (),
    )


def _adapters(need: Need) -> str:
    return f", of it adapters {format_bytes(need.adapters_bytes)}" if need.adapters_bytes else ""


def _command(spec: ReplicaSpec, gpus_here: int) -> Estimate:
    """On a GPU where the machine has one: most servers take it. ``device: ram`` keeps one off it."""
    found = _command_total(spec)
    gpus = gpus_of(spec, min(1, gpus_here))
    if not gpus:
        return found
    return replace(found, gpus=gpus, host_bytes=COMMAND_HOST_BYTES, named=spec.devices)


def _command_total(spec: ReplicaSpec) -> Estimate:
    size = 0
    if spec.source is not None:
        source = Path(spec.source)
        if not source.exists():
            raise CannotEstimate(FailureReason.WEIGHTS_MISSING, f"{source} does not exist")
        size = source_bytes(source)
    if spec.memory_bytes is not None:
        words = f"{format_bytes(spec.memory_bytes)}, as configured"
        return Estimate(spec.memory_bytes, size, 0, size, words)
    if spec.source is None:
        return Estimate(
            UNKNOWN_BYTES,
            arithmetic=f"{format_bytes(UNKNOWN_BYTES)}, assumed: neither memory nor source is configured",
            assumed=True,
        )
    reserve = int((size + COMMAND_PROCESS_BYTES) * spec.reserve_fraction)
    total = size + COMMAND_PROCESS_BYTES + reserve
    words = (
        f"{format_bytes(total)} (weights {format_bytes(size)}, process {format_bytes(COMMAND_PROCESS_BYTES)}, "
        f"reserve {format_bytes(reserve)})"
    )
    return Estimate(total, size, 0, size, words)


_ESTIMATES: Mapping[str, Callable[[ReplicaSpec, int], Estimate]] = {"vllm": _vllm, "torch": _torch}


def source_bytes(source: Path) -> int:
    """Size of a weight file, or of all files in a folder; what cannot be read counts nothing."""
    try:
        if source.is_dir():
            return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
        return source.stat().st_size
    except OSError:
        return 0
