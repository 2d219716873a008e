"""Small checkpoints and stores for the tests: real files, made in milliseconds."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

from snapshots.layout import TensorSpec, plan_parts
from snapshots.manifest import File, FileKind, Fingerprint, Flavour, Manifest, Source
from snapshots.store import Store

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "torch_dtype": "bfloat16",
}

TENSORS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "model.embed_tokens.weight": ("BF16", (1024, 64)),
    "model.layers.0.weight": ("BF16", (64, 64)),
    "model.layers.0.bias": ("F32", (3,)),
    "model.layers.0.qweight": ("I32", (17, 5)),  # a quantised layer: bits, to us
    "model.layers.1.weight": ("BF16", (64, 64)),
    "model.layers.1.fp8": ("F8_E4M3", (63, 65)),
    "model.norm.weight": ("BF16", (64,)),
    "empty": ("F32", (0, 4)),
}


def make_checkpoint(
    folder: Path,
    *,
    seed: int = 1,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]] = TENSORS,
    shards: int = 2,
    rows: int = 1024,
) -> dict[str, bytes]:
    """A folder as a hub has it: config, tokenizer, sharded safetensors with an index. Return each tensor's bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = random.Random(seed)
    wanted = dict(tensors)
    if rows != 1024:
        wanted["model.embed_tokens.weight"] = ("BF16", (rows, 64))
    specs = [TensorSpec(name, dtype, shape) for name, (dtype, shape) in wanted.items()]
    data = {spec.name: noise.randbytes(spec.data_bytes) for spec in specs}
    weight_map: dict[str, str] = {}
    for number in range(shards):
        mine = specs[number::shards]
        (part,) = plan_parts(mine, metadata={"format": "pt"})
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        (folder / name).write_bytes(part.header + b"".join(data[spec.name] for spec in part.tensors))
        weight_map |= {spec.name: name for spec in mine}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps({"vocab": {str(n): n for n in range(100)}}))
    (folder / "generation_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return data


def make_store(root: Path, **options: object) -> Store:
    options.setdefault("floor_bytes", 0)
    return Store(root, **options)  # type: ignore[arg-type]


def small_manifest(**changes: object) -> Manifest:
    """A valid manifest of one file that does not exist."""
    fields: dict[str, object] = {
        "model": "org/model",
        "flavour": Flavour.PORTABLE,
        "created": 1.5,
        "writer": "rewarm test",
        "chunk_bytes": 4096,
        "files": (
            File("model-rank-0-part-0.safetensors", FileKind.WEIGHTS, 5000, "ab" * 32, "0f" * 32),
            File("tokenizer/vocab.json", FileKind.EXTRA, 0, "cd" * 32, ""),
        ),
        "fingerprint": Fingerprint(tensors="ef" * 32, ranks={"tp": 1}),
        "source": Source("/models/here"),
    }
    return Manifest(**(fields | changes))  # type: ignore[arg-type]
