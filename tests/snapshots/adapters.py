"""Small LoRA adapters for tests, as PEFT writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.snapshots.checkpoints import CONFIG, write_weights

PREFIX = "base_model.model."
Q_PROJ = "model.layers.0.self_attn.q_proj"
ADAPTER: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}


def write_base(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "intermediate_size": 128}))
    write_weights(folder / "model.safetensors", {f"{Q_PROJ}.weight": ("BF16", [64, 64])})
    return folder


def write_adapter(
    folder: Path, *, module: str = Q_PROJ, a: tuple[int, ...] = (4, 64), b: tuple[int, ...] = (64, 4), **config: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**ADAPTER, **config}))
    sides = {"lora_A": a, "lora_B": b}
    tensors = {f"{PREFIX}{module}.{side}.weight": ("F32", list(shape)) for side, shape in sides.items() if shape}
    write_weights(folder / "adapter_model.safetensors", tensors)
    return folder
