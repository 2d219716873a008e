"""What the host holds of a model: the module, its tokenizer, and what follows from their configuration."""

from __future__ import annotations

import inspect as inspecting
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from rewarm.states import FailureReason
from rewarm_vllm import Loaded
from snapshots import Checkpoint, Lease, MappedWeights
from worker.engines.host import HostFailed
from worker.engines.torch.fitting import without_memory
from worker.engines.torch.need import generates

_POOLINGS = ("mean", "cls")


@dataclass(slots=True)
class Skeleton:
    """All of a model but its weights, which is all that a process of the pool can do ahead. ``module`` is on ``meta``.

    ``accepts``: what of ``position_ids``, ``logits_to_keep`` and ``token_type_ids`` its forward takes.
    """

    module: Any
    tokenizer: Any
    config: Any
    dtype: Any
    generates: bool
    context: int
    pad: int
    ends: frozenset[int]
    accepts: frozenset[str]
    defaults: dict[str, Any]
    pooling: str = "mean"


@dataclass(slots=True)
class Model:
    skeleton: Skeleton
    loaded: Loaded
    lease: Lease | None = None  # held as long as the module computes from the map
    mapped: MappedWeights | None = field(default=None, repr=False)

    @property
    def module(self) -> Any:
        return self.skeleton.module


def build(checkpoint: Checkpoint, dtype: str, context: int) -> Skeleton:
    """Raise HostFailed (START_REFUSED) for a model that this engine cannot serve, and what transformers raises."""
    folder = checkpoint.folder
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    longest = checkpoint.shape.max_context
    if context > longest:
        raise _refused(f"context_length {context} is longer than the checkpoint's {longest}")
    if getattr(config, "is_encoder_decoder", False):
        raise _refused(f"{checkpoint.shape.architecture} is an encoder with a decoder, which this engine does not run")
    if getattr(config, "quantization_config", None) is not None:
        raise _refused("the checkpoint is quantised, which this engine does not run; vLLM may")
    writes = generates(checkpoint)
    auto = transformers.AutoModelForCausalLM if writes else transformers.AutoModel
    kind = getattr(torch, dtype)
    with without_memory():
        module = auto.from_config(config, dtype=kind, trust_remote_code=False)
    module.eval()
    if writes and getattr(module, "_is_stateful", False):
        raise _refused(f"{checkpoint.shape.architecture} keeps a state that is no cache of keys and values")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    general = _generation(folder) if writes else None
    ends = getattr(general, "eos_token_id", None)
    if ends is None:
        ends = tokenizer.eos_token_id
    pad = next((n for n in (tokenizer.pad_token_id, getattr(config, "pad_token_id", None)) if n is not None), 0)
    return Skeleton(
        module,
        tokenizer,
        config,
        kind,
        writes,
        context,
        pad,
        frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends]),
        frozenset(inspecting.signature(module.forward).parameters),
        _defaults(general),
        "mean" if writes else _pooling(folder),
    )


def _generation(folder: Path) -> Any:
    try:
        return transformers.GenerationConfig.from_pretrained(folder)
    except OSError:
        return None  # it has none


def _defaults(general: Any) -> dict[str, Any]:
    """What a checkpoint wants where a client does not say: as ``generate`` and vLLM take it."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    if general is None:
        return {}
    said = general.to_diff_dict()  # without what transformers itself takes where a checkpoint says nothing
    return {name: said[name] for name in names if said.get(name) is not None}


def _pooling(folder: Path) -> str:
    """As sentence-transformers wrote it down; the mean where nothing is. Raise HostFailed for another way."""
    try:
        modules = json.loads((folder / "modules.json").read_bytes())
        path = next(module["path"] for module in modules if str(module["type"]).endswith(".Pooling"))
        config = json.loads((folder / path / "config.json").read_bytes())
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return "mean"
    modes = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    on = [name for name, key in modes.items() if config.get(key)] or [config.get("pooling_mode", "mean")]
    others = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if len(on) != 1 or on[0] not in _POOLINGS or set(others) - set(modes.values()):
        raise _refused(f"pooling {others or on} of {folder / path}: this engine does the mean or the first token")
    return str(on[0])


def _refused(message: str) -> HostFailed:
    return HostFailed(FailureReason.START_REFUSED, message)
