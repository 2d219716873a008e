"""A LoRA adapter's folder, inspected without reading its weights: whole or not, how large, and whether it goes with
its base.

An engine finds out about an adapter only when it has loaded its base, and some damage only by computing nonsense. Here
it costs milliseconds, names the file, and leaves the base alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapshots.checkpoint import Checkpoint
from snapshots.consistency import LLAMA_LIKE
from snapshots.errors import WeightsCorrupt, WeightsMissing
from snapshots.header import Header, Tensor, read_header

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_SIDE = re.compile(r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")
_PLAIN = frozenset(("F64", "F32", "F16", "BF16"))  # stored as what they are: the shape is the matrix's own


@dataclass(frozen=True, slots=True)
class Adapter:
    folder: Path
    rank: int  # the largest of its modules
    header: Header

    @property
    def elements(self) -> int:
        return sum(_elements(tensor) for tensor in self.header.tensors.values())


def inspect_adapter(folder: Path, base: Checkpoint | None = None) -> Adapter:
    """With ``base``, whether the shapes are those of its modules, too. Raise WeightsMissing or WeightsCorrupt, naming
    the file."""
    if not folder.is_dir():
        raise WeightsMissing(folder, "is not a folder" if folder.exists() else "does not exist")
    ranks = _ranks(folder / ADAPTER_CONFIG)
    path = folder / ADAPTER_WEIGHTS
    if not path.is_file():
        pickled = any((folder / name).is_file() for name in ("adapter_model.bin", "adapter_model.pt"))
        why = "is missing" + (" (pickled *.bin and *.pt are not loaded)" if pickled else "")
        raise WeightsMissing(path, why)
    header = read_header(path)
    modules = _modules(path, header.tensors)
    for module, (a, b) in modules.items():
        rank = a.shape[0]
        if b.shape[1] != rank:
            raise WeightsCorrupt(path, f"{module}: lora_A has rank {rank}, lora_B has {b.shape[1]}")
        if rank not in ranks:
            told = ", ".join(str(one) for one in sorted(ranks))
            raise WeightsCorrupt(path, f"{module}: has rank {rank}, {ADAPTER_CONFIG} says {told}")
    if base is not None:
        _compare(path, modules, base)
    return Adapter(folder, max(ranks), header)


def _ranks(path: Path) -> frozenset[int]:
    config = _read(path)
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise WeightsCorrupt(path, f"`peft_type` is {str(kind)[:40]!r}: only LORA is served")
    for name, kinds in (("lora_alpha", (int, float)), ("target_modules", (list, str))):
        if not isinstance(config.get(name), kinds) or isinstance(config.get(name), bool):
            raise WeightsCorrupt(path, f"`{name}` is missing or has the wrong type")
    pattern = config.get("rank_pattern") or {}
    if not isinstance(pattern, dict):
        raise WeightsCorrupt(path, "`rank_pattern` is no object")
    found = [("r", config.get("r")), *((f"rank_pattern.{name}"[:200], rank) for name, rank in pattern.items())]
    for name, rank in found:
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise WeightsCorrupt(path, f"`{name}` is {str(rank)[:40]!r}, not a positive whole number")
    return frozenset(rank for _, rank in found if isinstance(rank, int))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsMissing(path, error.strerror or str(error)) from error
    except json.JSONDecodeError as error:
        raise WeightsCorrupt(path, f"not JSON: {error.msg}", offset=error.pos) from error
    except (ValueError, RecursionError) as error:
        raise WeightsCorrupt(path, f"not JSON: {error}") from error
    if not isinstance(config, dict):
        raise WeightsCorrupt(path, "not a JSON object")
    return config


def _modules(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Module → (A, B). What is neither is the engine's to judge."""
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _SIDE.match(name)
        if match is not None:
            sides.setdefault(match["module"], {})[match["side"]] = tensor
    if not sides:
        raise WeightsCorrupt(path, "holds no LoRA weights (tensors named *.lora_A.weight and *.lora_B.weight)")
    for module, pair in sides.items():
        for side in "AB":
            if side not in pair:
                raise WeightsCorrupt(path, f"{module[:200]}: has no lora_{side}")
            if len(pair[side].shape) != 2:
                raise WeightsCorrupt(path, f"{module[:200]}: lora_{side} is no matrix")
    return {module: (pair["A"], pair["B"]) for module, pair in sides.items()}


def _compare(path: Path, modules: Mapping[str, tuple[Tensor, Tensor]], base: Checkpoint) -> None:
    held = {name: tensor for file in base.files for name, tensor in file.header.tensors.items()}
    owners = set(_owners(held))
    known = base.shape.architecture in LLAMA_LIKE  # others may be renamed on their way into the engine
    for module, (a, b) in modules.items():
        weight = held.get(f"{module}.weight")
        if weight is None:
            if known and module not in owners:
                raise WeightsCorrupt(path, f"{module[:200]} is no module of its base, {base.folder}")
            continue
        change = (b.shape[0], a.shape[1])
        if weight.dtype in _PLAIN and len(weight.shape) == 2 and weight.shape != change:
            there = f"in its base {base.folder} it is {list(weight.shape)}"
            raise WeightsCorrupt(path, f"{module}: changes a matrix of {list(change)}, {there}")


def _owners(names: Iterable[str]) -> Iterator[str]:
    """The modules that have some tensor: quantised ones have no ``weight``."""
    return (name.rpartition(".")[0] for name in names)


def _elements(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count
