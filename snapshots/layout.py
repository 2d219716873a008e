"""Safetensors files laid out for O_DIRECT: the data starts at a multiple of 4096, and so do nearly all large tensors.

The header is padded with spaces, which every reader accepts. There are no pad tensors (they would turn up as unknown
weights): tensors are sorted, stably, by the power of two that divides their size, so that each starts where it may.
Stability keeps the order of layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from snapshots.header import DTYPE_BITS

ALIGNMENT = 4096
PART_BYTES = 5_000_000_000
"""vLLM's own default for one file of a sharded state. A tensor is never split."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    dtype: str  # as safetensors spells it: "BF16"
    shape: tuple[int, ...]

    @property
    def data_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class Part:
    """One file to write: ``header`` (a multiple of 4096 bytes), then the tensors' bytes in this order, without gaps."""

    name: str
    header: bytes
    tensors: tuple[TensorSpec, ...]
    file_bytes: int


def alignment(size: int) -> int:
    """The largest power of two, at most 4096, that divides ``size``."""
    return min(size & -size, ALIGNMENT) if size else ALIGNMENT


def arrange(tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    return sorted(tensors, key=lambda tensor: -alignment(tensor.data_bytes))


def part_name(rank: int, part: int) -> str:
    """The names that stock vLLM's ``--load-format sharded_state`` looks for."""
    return f"model-rank-{rank}-part-{part}.safetensors"


def plan_parts(
    tensors: Sequence[TensorSpec],
    *,
    rank: int = 0,
    metadata: Mapping[str, str] | None = None,
    part_bytes: int = PART_BYTES,
) -> list[Part]:
    """Cut ``tensors`` into files of about ``part_bytes``, in their order, and arrange each. At least one file."""
    groups: list[list[TensorSpec]] = [[]]
    size = 0
    for tensor in tensors:
        if groups[-1] and size + tensor.data_bytes > part_bytes:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += tensor.data_bytes
    return [_part(part_name(rank, number), arrange(group), metadata or {}) for number, group in enumerate(groups)]


def _part(name: str, tensors: Sequence[TensorSpec], metadata: Mapping[str, str]) -> Part:
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        if tensor.name in table:
            raise ValueError(f"tensor {tensor.name!r} is there twice")
        stop = at + tensor.data_bytes
        table[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    padded = text.ljust(-(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT - 8)
    header = len(padded).to_bytes(8, "little") + padded
    return Part(name, header, tuple(tensors), len(header) + at)
