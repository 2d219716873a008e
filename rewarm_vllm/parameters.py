"""What a model is made of, by name: the tensors that vLLM's ``sharded_state`` knows, and how they are set in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader

from rewarm_vllm.views import NAMES
from snapshots import SnapshotError, TensorSpec

_HEAD = "lm_head.weight"


class DoesNotFit(SnapshotError):
    """A snapshot's tensors are not those of the model that the engine built. The message names one."""

    code = "snapshot_does_not_fit"
    advice = "Nothing has to be done: the next best is loaded."


def sharded_names(model: nn.Module) -> list[str]:
    """The names that stock ``--load-format sharded_state`` asks for, in the model's order: no aliases, so that of tied
    word embeddings only the head's name is there."""
    kept = ShardedStateLoader._filter_subtensors(model.state_dict())
    return [name for name in model.state_dict() if name in kept]


def specs(model: nn.Module, names: list[str]) -> list[TensorSpec]:
    state = model.state_dict()
    return [TensorSpec(name, NAMES[state[name].dtype], tuple(state[name].shape)) for name in names]


def set_all(model: nn.Module, tensors: Mapping[str, torch.Tensor], *, untied: bool = False) -> None:
    """Make ``tensors`` the model's, in place: on the CPU they become its memory, elsewhere they are copied.

    ``untied``: vLLM has seen an ``lm_head`` in the files of a model whose word embeddings are tied, and built two
    tensors where one was captured; it compares them later, and ties them again.

    Raise DoesNotFit, with the model half changed, when a name, shape or dtype is not the model's, or one is missing.
    """
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        target = state.get(name)
        if target is None:
            raise DoesNotFit(f"the model has no {name}")
        if target.shape != tensor.shape or target.dtype != tensor.dtype:
            raise DoesNotFit(
                f"{name} is {tensor.dtype} {list(tensor.shape)}, in the model {target.dtype} {list(target.shape)}"
            )
    missing = set(ShardedStateLoader._filter_subtensors(model.state_dict())) - set(tensors)
    if untied and len(missing) == 1:
        embedding = min(missing)
        heads = [tensor for name, tensor in tensors.items() if name.endswith(_HEAD)]
        if len(heads) == 1 and heads[0].shape == state[embedding].shape:
            tensors = {**tensors, embedding: heads[0]}
            missing = set()
    if missing:
        raise DoesNotFit(f"there is no {min(missing)}")
    shared = _shared_storages(state)
    for name, tensor in tensors.items():
        target = state[name]
        if target.device.type == "cpu" and target.untyped_storage().data_ptr() not in shared:
            target.data = tensor
        else:
            target.data.copy_(tensor)


def _shared_storages(state: Mapping[str, torch.Tensor]) -> set[int]:
    """Storages that different tensors look into: one of them must not be moved away from the others."""
    holders: dict[int, set[int]] = defaultdict(set)
    for tensor in state.values():
        if tensor.numel():
            holders[tensor.untyped_storage().data_ptr()].add(id(tensor))
    return {storage for storage, ids in holders.items() if len(ids) > 1}
