"""A Hugging Face checkpoint folder, inspected without reading its weights: whole or not, and how large."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from snapshots.consistency import check_shapes
from snapshots.errors import WeightsCorrupt, WeightsMissing
from snapshots.header import DTYPE_BITS, Header, read_header
from snapshots.shape import CONFIG_FILE, ModelShape, dtype_bytes, read_config, shape_of

INDEX_FILE = "model.safetensors.index.json"

_SHARD = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors$")
_CAST = frozenset(("F64", "F32", "F16", "BF16"))  # what an engine converts to its own dtype; quantised weights stay


@dataclass(frozen=True, slots=True)
class WeightFile:
    path: Path
    header: Header

    @property
    def file_bytes(self) -> int:
        return self.header.file_bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    folder: Path
    shape: ModelShape
    files: tuple[WeightFile, ...]  # in the order of their names
    folder_bytes: int  # every file in the folder, tokenizer and configuration included

    @property
    def file_bytes(self) -> int:
        """Bytes of the weight files, headers included: what a load counts up to."""
        return sum(file.file_bytes for file in self.files)

    @property
    def header_bytes(self) -> int:
        return sum(file.header.header_bytes for file in self.files)

    @property
    def tensors(self) -> int:
        return sum(len(file.header.tensors) for file in self.files)

    def element_bytes(self, dtype: str | None = None) -> int:
        """Of one number that is computed with, in ``dtype`` as below."""
        return dtype_bytes(self.shape.dtype if dtype in (None, "auto") else str(dtype))

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Bytes of the weights in memory, floating-point ones in ``dtype`` (None or "auto": the model's own)."""
        target = self.element_bytes(dtype)
        total = 0
        for file in self.files:
            for tensor in file.header.tensors.values():
                size = tensor.data_bytes
                total += size * 8 * target // DTYPE_BITS[tensor.dtype] if tensor.dtype in _CAST else size
        return total


def inspect(folder: Path) -> Checkpoint:
    """Raise WeightsMissing or WeightsCorrupt, naming the file, and the offset where there is one.

    Which files count is what vLLM's loader decides: those that the index names, else every ``*.safetensors`` in the
    folder.
    """
    if not folder.is_dir():
        raise WeightsMissing(folder, "is not a folder" if folder.exists() else "does not exist")
    config = read_config(folder)
    shape = shape_of(folder / CONFIG_FILE, config)
    index = _index(folder)
    names = sorted(set(index.values())) if index is not None else _weight_names(folder)
    files = tuple(WeightFile(folder / name, read_header(folder / name)) for name in names)
    if index is not None:
        _check_index(folder, index, files)
    _check_unique(files)
    check_shapes(config, ((file.path, file.header.tensors) for file in files))
    try:
        folder_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise WeightsMissing(folder, error.strerror or str(error)) from error
    return Checkpoint(folder, shape, files, folder_bytes)


def _weight_names(folder: Path) -> list[str]:
    try:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    except OSError as error:
        raise WeightsMissing(folder, error.strerror or str(error)) from error
    if not names:
        raise WeightsMissing(folder, "holds no *.safetensors file (pickled *.bin and *.pt are not loaded)")
    for name in names:
        match = _SHARD.match(name)
        if match is None:
            continue
        for number in range(1, int(match["count"]) + 1):
            shard = f"{match['stem']}-{number:05d}-of-{match['count']}.safetensors"
            if shard not in names:
                raise WeightsMissing(folder / shard, f"is missing beside {name}")
    return names


def _index(folder: Path) -> dict[str, str] | None:
    """The index's map of tensor to file, or None where there is no index."""
    path = folder / INDEX_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WeightsMissing(path, error.strerror or str(error)) from error
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise WeightsCorrupt(path, f"not JSON: {error.msg}", offset=error.pos) from error
    except (ValueError, RecursionError) as error:
        raise WeightsCorrupt(path, f"not JSON: {error}") from error
    weight_map = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsCorrupt(path, "has no `weight_map`")
    for name in weight_map.values():
        if not isinstance(name, str) or "/" in name or not name.endswith(".safetensors"):
            raise WeightsCorrupt(
                path, f"`weight_map` names {str(name)[:200]!r}, which is no safetensors file beside it"
            )
    for name in sorted(set(weight_map.values())):
        if not (folder / name).is_file():
            raise WeightsMissing(folder / name, f"is missing; {INDEX_FILE} names it")
    return weight_map


def _check_index(folder: Path, index: Mapping[str, str], files: tuple[WeightFile, ...]) -> None:
    held = {file.path.name: file.header.tensors for file in files}
    for tensor, name in index.items():
        if tensor not in held[name]:
            raise WeightsCorrupt(
                folder / name, f"does not hold tensor {tensor[:200]!r}, which {INDEX_FILE} places there"
            )


def _check_unique(files: tuple[WeightFile, ...]) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        for tensor in file.header.tensors:
            if tensor in seen:
                raise WeightsCorrupt(file.path, f"holds tensor {tensor[:200]!r}, and so does {seen[tensor].name}")
            seen[tensor] = file.path
