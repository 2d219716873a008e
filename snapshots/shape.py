"""What ``config.json`` says about a model's memory: the cost of a token in the KV cache, and the longest context."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapshots.errors import WeightsCorrupt, WeightsMissing

CONFIG_FILE = "config.json"

_DEFAULT_CONTEXT = 2048  # what vLLM assumes when a configuration names none
_DTYPE_BYTES = {"float32": 4, "float16": 2, "half": 2, "bfloat16": 2, "float64": 8}

# The same quantity under the names that different families gave it.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """``kv_elements_per_token`` counts numbers over all layers, keys and values together; an upper bound for models
    with sliding windows or state-space layers, which need less."""

    architecture: str
    layers: int
    kv_heads: int
    head_dim: int
    kv_elements_per_token: int
    max_context: int
    dtype: str  # as an engine's `auto` takes it

    def kv_bytes_per_token(self, dtype: str | None = None) -> int:
        """For a cache in ``dtype``; None or "auto" is the model's own."""
        name = self.dtype if dtype in (None, "auto") else dtype
        return self.kv_elements_per_token * _DTYPE_BYTES.get(str(name), 2)


def dtype_bytes(name: str) -> int:
    return _DTYPE_BYTES.get(name, 2)


def read_shape(folder: Path) -> ModelShape:
    """Raise WeightsMissing without a ``config.json``, WeightsCorrupt when it is not one of a language model."""
    return shape_of(folder / CONFIG_FILE, read_config(folder))


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON object in ``config.json``. Raise as :func:`read_shape`."""
    path = folder / CONFIG_FILE
    try:
        text = path.read_bytes()
    except OSError as error:
        raise WeightsMissing(path, error.strerror or str(error)) from error
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise WeightsCorrupt(path, f"not JSON: {error.msg}", offset=error.pos) from error
    except (ValueError, RecursionError) as error:
        raise WeightsCorrupt(path, f"not JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsCorrupt(path, "not a JSON object")
    return config


def shape_of(path: Path, config: Mapping[str, Any]) -> ModelShape:
    text = config.get("text_config")  # of a model that also sees or hears
    model = text if isinstance(text, dict) else config
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise WeightsCorrupt(path, "names no `architectures`: engines cannot tell what the weights are")
    layers = _number(path, model, _LAYERS)
    heads = _number(path, model, _HEADS)
    kv_heads = _kv_heads(path, model, heads)
    head_dim = _optional(path, model, ("head_dim",)) or _number(path, model, _HIDDEN) // heads
    latent = _optional(path, model, ("kv_lora_rank",))
    if latent is not None:  # multi-head latent attention keeps one compressed vector for keys and values
        elements = layers * (latent + (_optional(path, model, ("qk_rope_head_dim",)) or 0))
    else:
        elements = layers * kv_heads * head_dim * 2
    context = _optional(path, model, _CONTEXT) or _DEFAULT_CONTEXT
    return ModelShape(architectures[0], layers, kv_heads, head_dim, elements, context, _dtype(config, model))


def _kv_heads(path: Path, model: Mapping[str, Any], heads: int) -> int:
    if model.get("multi_query") is True and model.get("new_decoder_architecture") is not True:
        return 1
    return _optional(path, model, _KV_HEADS) or heads


def _dtype(config: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    for source in (model, config):
        for field in ("dtype", "torch_dtype"):
            name = source.get(field)
            if isinstance(name, str):
                name = name.removeprefix("torch.")
                return "bfloat16" if name == "float32" else name  # vLLM's `auto` never runs in float32
    return "bfloat16"


def _optional(path: Path, model: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = model.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**40:
            raise WeightsCorrupt(path, f"`{name}` is {value!r}, not a positive whole number")
        return value
    return None


def _number(path: Path, model: Mapping[str, Any], names: tuple[str, ...]) -> int:
    value = _optional(path, model, names)
    if value is None:
        raise WeightsCorrupt(path, f"has no `{names[0]}`: not the configuration of a language model")
    return value
