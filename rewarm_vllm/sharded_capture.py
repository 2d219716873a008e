"""A sharded snapshot in the making: its files are reserved first, and are then the model's memory while it loads.

So a capture holds no second copy of the weights. What is loaded lands in the page cache, where the kernel writes it out
and drops it as it likes; another process's memory is not what pays for a snapshot.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from rewarm_vllm.parameters import set_all, sharded_names, specs
from rewarm_vllm.views import tensor_over
from snapshots import File, FileKind, Part, Staging, plan_parts


def plan(model: nn.Module) -> list[Part]:
    """By the model's structure alone. The names are those of the first and only rank: others are not captured."""
    return plan_parts(specs(model, sharded_names(model)), metadata={"format": "pt"})


class ShardedFiles:
    """The files of ``parts`` below ``staging``, mapped. ``tensors``: name → view into them."""

    def __init__(self, staging: Staging, parts: Sequence[Part]) -> None:
        self._staging, self._parts = staging, parts
        self._maps: dict[str, mmap.mmap] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for part in parts:
            self._maps[part.name] = mapped = staging.mapped(part.name)
            mapped[: len(part.header)] = part.header
            at = len(part.header)
            for spec in part.tensors:
                data = memoryview(mapped)[at : at + spec.data_bytes]
                self.tensors[spec.name] = tensor_over(data, spec.dtype, spec.shape)
                at += spec.data_bytes

    def become_memory_of(self, model: nn.Module) -> None:
        """Before the weights are loaded, on the CPU: every write to a parameter is one to the file."""
        keep: Mapping[str, torch.Tensor] = model.state_dict()
        for name, tensor in self.tensors.items():
            tensor.copy_(keep[name])  # what a model initialises itself, and no checkpoint holds
        set_all(model, self.tensors)

    def take_from(self, model: nn.Module) -> None:
        """After the weights are loaded: whatever of them does not lie in the files by then."""
        state = model.state_dict()
        for name, tensor in self.tensors.items():
            if state[name].data_ptr() != tensor.data_ptr():
                tensor.copy_(state[name])

    def finish(self) -> list[File]:
        """Synced and digested. Before the engine changes any parameter."""
        return [self._staging.digested(part.name, FileKind.WEIGHTS, self._maps[part.name]) for part in self._parts]
