"""Small checkpoints for tests, written by hand so that they can be broken by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from snapshots.header import DTYPE_BITS

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}


def layout(tensors: Mapping[str, tuple[str, list[int]]]) -> tuple[dict[str, Any], int]:
    """A correct header for tensors given as name → (dtype, shape), and the bytes of data it describes."""
    header: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, at


def encoded(header: object, data_bytes: int, *, pad: bytes = b"") -> bytes:
    raw = (header if isinstance(header, bytes) else json.dumps(header).encode()) + pad
    return len(raw).to_bytes(8, "little") + raw + bytes(data_bytes)


def write_weights(path: Path, tensors: Mapping[str, tuple[str, list[int]]]) -> None:
    header, size = layout(tensors)
    path.write_bytes(encoded(header, size))


def write_checkpoint(folder: Path, config: Mapping[str, Any] = CONFIG) -> Path:
    """Two tensors in one file, 4 × 8 and 8 numbers of bfloat16: 80 bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder / "model.safetensors", {"a.weight": ("BF16", [4, 8]), "b.weight": ("BF16", [8])})
    return folder


def write_sharded(folder: Path) -> Path:
    """Two shards and their index."""
    write_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    write_weights(folder / names[0], {"a.weight": ("BF16", [4, 8])})
    write_weights(folder / names[1], {"b.weight": ("F32", [8])})
    index = {"metadata": {}, "weight_map": {"a.weight": names[0], "b.weight": names[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
