"""LoRA adapters of a replica's model: which can be served, what that costs, and giving them to vLLM.

An adapter that cannot be served is left out, with the reason: its base and the other adapters are served all the same.
Imports nothing of vLLM at its top: the agent asks here, too, before anything is started.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rewarm.messages import AdapterSpec, ReplicaSpec
from snapshots import ADAPTER_CONFIG, Adapter, Checkpoint, CheckpointError, WeightsCorrupt, inspect_adapter

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's ``max_lora_rank`` may be; all adapters get room for that."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """``slots``: how many requests run at once, so that no more adapters than that can be in use together."""

    usable: tuple[tuple[AdapterSpec, Adapter], ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)  # name → why
    slots: int = 1

    @property
    def max_lora_rank(self) -> int:
        """0 where there is no adapter."""
        return max((_room(adapter.rank) for _, adapter in self.usable), default=0)

    def max_loras(self, *, cpu: bool) -> int:
        """On the CPU one more than there are adapters, which stays empty, behind all that are loaded: vLLM's operations
        there take the last one for tokens of the base that share a batch with an adapter's, where its GPU kernels skip
        them (https://github.com/vllm-project/vllm/pull/48421)."""
        return len(self.usable) + 1 if cpu else min(len(self.usable), self.slots)

    def need_bytes(self, checkpoint: Checkpoint, element_bytes: int, *, cpu: bool) -> int:
        """Room for ``max_loras`` at every matrix of the model, whichever the adapters change, and each adapter itself
        beside that: vLLM keeps all of them in RAM."""
        sides = sum(sum(t.shape) for f in checkpoint.files for t in f.header.tensors.values() if len(t.shape) == 2)
        room = self.max_loras(cpu=cpu) * self.max_lora_rank * sides
        return (room + sum(adapter.elements for _, adapter in self.usable)) * element_bytes

    def complete(self, namespace: argparse.Namespace, *, cpu: bool) -> None:
        """vLLM's options, in place."""
        if self.usable:
            namespace.enable_lora = True
            namespace.max_lora_rank = self.max_lora_rank
            namespace.max_loras = self.max_loras(cpu=cpu)
            namespace.max_cpu_loras = max(len(self.usable), namespace.max_loras)


def find(spec: ReplicaSpec, checkpoint: Checkpoint) -> Adapters:
    """Reads headers only."""
    usable: list[tuple[AdapterSpec, Adapter]] = []
    broken: dict[str, str] = {}
    for one in spec.adapters:
        try:
            usable.append((one, check(Path(one.source), checkpoint)))
        except CheckpointError as error:
            broken[one.name] = str(error)
        except OSError as error:
            broken[one.name] = f"{one.source}: {error.strerror or error}"
    return Adapters(tuple(usable), broken, spec.slots)


def check(folder: Path, checkpoint: Checkpoint | None) -> Adapter:
    """Raise WeightsMissing, or WeightsCorrupt also for a rank that vLLM does not take."""
    adapter = inspect_adapter(folder, checkpoint)
    if adapter.rank > RANKS[-1]:
        raise WeightsCorrupt(
            folder / ADAPTER_CONFIG, f"rank {adapter.rank} is too large: vLLM serves adapters of at most {RANKS[-1]}"
        )
    return adapter


async def give(adapters: Adapters, models: Any, options: argparse.Namespace) -> dict[str, str]:
    """To ``models`` (vLLM's OpenAIServingModels), which loads them; those that cannot be served, with the reason."""
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

    broken = dict(adapters.broken)
    for one, adapter in adapters.usable:
        if not options.enable_lora or adapter.rank > options.max_lora_rank:
            broken[one.name] = "it was changed after its base had been prepared: stop the base once"
            continue
        told = await models.load_lora_adapter(LoadLoRAAdapterRequest(lora_name=one.name, lora_path=one.source))
        if isinstance(told, ErrorResponse):
            broken[one.name] = f"vLLM does not load it: {told.error.message}"
            continue
    return broken


def _room(rank: int) -> int:
    return next((one for one in RANKS if one >= rank), RANKS[-1])
