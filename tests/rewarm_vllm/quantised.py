"""SmolLM2 with its linear layers quantised as AWQ, GPTQ or FP8 checkpoints have them: rounded to the nearest, small
enough for a test, and still a model that answers in sentences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

Method = Literal["awq", "gptq", "fp8"]
METHODS: tuple[Method, ...] = ("awq", "gptq", "fp8")

GROUP = 64  # inputs that share a scale
_NIBBLES = 8  # in an int32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

CONFIGS: dict[Method, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "checkpoint_format": "gptq",
    },
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
}


def quantise(source: Path, target: Path, method: Method) -> Path:
    """A checkpoint's folder made of ``source``'s."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "rewarm-manifest.json"))
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIGS[method]}))
    tensors: dict[str, Any] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight" and module.endswith("_proj"):
            made = {"awq": _awq, "gptq": _gptq, "fp8": _fp8}[method](weight.float())
            tensors |= {f"{module}.{suffix}": tensor.contiguous() for suffix, tensor in made.items()}
        else:
            tensors[name] = weight
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def _awq(weight: Any) -> dict[str, Any]:
    groups = _grouped(weight)
    low, high = groups.amin(1), groups.amax(1)
    scales = ((high - low) / 15).clamp(min=1e-6)
    zeros = (-low / scales).round().clamp(0, 15)
    values = (groups / scales[:, None] + zeros[:, None]).round().clamp(0, 15).flatten(0, 1)
    return {
        "qweight": _packed(values, _AWQ_ORDER),
        "qzeros": _packed(zeros, _AWQ_ORDER),
        "scales": scales.half(),
    }


def _gptq(weight: Any) -> dict[str, Any]:
    import torch

    groups = _grouped(weight)
    scales = (groups.abs().amax(1) / 7).clamp(min=1e-6)
    values = (groups / scales[:, None] + 8).round().clamp(0, 15).flatten(0, 1)
    inputs = len(values)
    return {
        "qweight": _packed(values.T.contiguous(), range(_NIBBLES)).T,
        "qzeros": _packed(torch.full_like(scales, 7), range(_NIBBLES)),  # the format stores them less one
        "scales": scales.half(),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP,
    }


def _fp8(weight: Any) -> dict[str, Any]:
    import torch

    scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
    return {"weight": (weight / scale).to(torch.float8_e4m3fn), "weight_scale": scale.reshape(1)}


def _grouped(weight: Any) -> Any:
    """[outputs, inputs] as [groups, inputs of a group, outputs]."""
    return weight.T.reshape(-1, GROUP, len(weight))


def _packed(values: Any, order: Any) -> Any:
    """Eight columns in each int32, the first of ``order`` in its lowest bits."""
    import torch

    columns = values.to(torch.int64).reshape(len(values), -1, _NIBBLES)
    out = torch.zeros(columns.shape[:2], dtype=torch.int64)
    for place, column in enumerate(order):
        out |= columns[:, :, column] << (4 * place)
    return torch.where(out >= 2**31, out - 2**32, out).to(torch.int32)
