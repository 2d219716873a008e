"""Do the weights have the shapes that ``config.json`` promises?

vLLM does not ask: a matrix with too many rows is cut to size without a word, and the model then answers nonsense.
Checked here for the families that are laid out like Llama; others pass unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from snapshots.errors import WeightsCorrupt
from snapshots.header import Tensor

LLAMA_LIKE = frozenset(
    (
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SmolLM3ForCausalLM",
    )
)

_LAYER = re.compile(r"^model\.layers\.(\d+)\.(?:self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj\.weight$")
_EMBEDDING = "model.embed_tokens.weight"


def check_shapes(config: Mapping[str, Any], files: Iterable[tuple[Path, Mapping[str, Tensor]]]) -> None:
    """Raise WeightsCorrupt that names the first tensor of another shape."""
    architectures = config.get("architectures") or [None]
    if architectures[0] not in LLAMA_LIKE or config.get("quantization_config") is not None:
        return
    expected = _expected(config)
    if expected is None:
        return
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    for path, tensors in files:
        for name, tensor in tensors.items():
            match = _LAYER.match(name)
            if match is not None and int(match[1]) >= layers:
                raise WeightsCorrupt(path, f"tensor {name!r} belongs to no layer: config.json has {layers}")
            want = expected[match[2]] if match is not None else None
            if name == _EMBEDDING and len(tensor.shape) == 2:
                want = (tensor.shape[0], hidden)
            if want is not None and tensor.shape != want:
                problem = f"tensor {name!r} has shape {list(tensor.shape)}, config.json asks for {list(want)}"
                raise WeightsCorrupt(path, problem)


def _expected(config: Mapping[str, Any]) -> dict[str, tuple[int, int]] | None:
    """Projection → (rows, columns). None where the configuration leaves something open."""
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
    numbers = [config.get(name) for name in names]
    if not all(isinstance(number, int) for number in numbers):
        return None
    hidden, inner, heads, _ = (int(number or 0) for number in numbers)
    head = config.get("head_dim") or hidden // max(1, heads)
    kv = (config.get("num_key_value_heads") or heads) * head
    query = heads * head
    return {
        "q": (query, hidden),
        "k": (kv, hidden),
        "v": (kv, hidden),
        "o": (hidden, query),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
