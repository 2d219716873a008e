"""SmolLM2's first two layers: what it says means nothing, and it compiles in a tenth of the time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path


def cut(source: Path, target: Path, layers: int = 2) -> Path:
    """A checkpoint's folder made of ``source``'s."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "rewarm-manifest.json"))
    config = json.loads((target / "config.json").read_text())
    config.pop("layer_types", None)
    (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    weights = load_file(source / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if _layer(name) < layers}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _layer(name: str) -> int:
    """-1 for what belongs to none."""
    _, found, rest = name.partition(".layers.")
    return int(rest.partition(".")[0]) if found else -1
