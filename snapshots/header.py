"""The header of a safetensors file, read and checked more strictly than the library does.

A file is: 8 bytes little-endian header length N, N bytes of JSON (padded with spaces), then the tensors' bytes. The
library lets duplicate keys pass; here a file is accepted only if its tensors cover the data exactly once: no hole, no
overlap, nothing missing at the end and nothing after it. A damaged file then fails in a millisecond with its name and
offset, instead of after an engine's start with a stack trace, or never.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from snapshots.errors import WeightsCorrupt, WeightsMissing

MAX_HEADER_BYTES = 100_000_000
"""The library's own limit: a longer header is an attack or noise."""

_LENGTH_BYTES = 8

DTYPE_BITS: Mapping[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    start: int  # offset in the data section
    stop: int

    @property
    def data_bytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """``header_bytes`` counts the length field and the JSON; ``file_bytes == header_bytes + data_bytes``, always."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    header_bytes: int
    data_bytes: int

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + self.data_bytes


class _Duplicate(ValueError):
    pass


def read_header(path: Path) -> Header:
    """Read and check one file. Only its header is read, whatever its size.

    Raise WeightsMissing when it cannot be opened, WeightsCorrupt for everything else.
    """
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = _length(path, file.read(_LENGTH_BYTES), file_bytes)
            raw = file.read(length)
    except OSError as error:
        raise WeightsMissing(path, error.strerror or str(error)) from error
    if len(raw) != length:
        raise WeightsCorrupt(path, "the file shrank while it was read", offset=_LENGTH_BYTES + len(raw))
    return parse_header(path, raw, file_bytes)


def parse_image(path: Path, data: memoryview) -> Header:
    """As :func:`read_header`, of a whole file that lies in memory."""
    length = _length(path, bytes(data[:_LENGTH_BYTES]), len(data))
    return parse_header(path, bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + length]), len(data))


def _length(path: Path, prefix: bytes, file_bytes: int) -> int:
    if len(prefix) < _LENGTH_BYTES:
        raise WeightsCorrupt(path, f"only {file_bytes} bytes, too short for a safetensors file", offset=len(prefix))
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise WeightsCorrupt(path, f"says its header has {length} bytes: no safetensors file", offset=0)
    if length > file_bytes - _LENGTH_BYTES:
        problem = f"says its header has {length} bytes, the file has {file_bytes}: truncated"
        raise WeightsCorrupt(path, problem, offset=file_bytes)
    return length


def parse_header(path: Path, raw: bytes, file_bytes: int) -> Header:
    """Check the JSON ``raw`` against a file of ``file_bytes`` bytes in all. ``path`` only names it in errors."""
    if not raw.startswith(b"{"):
        raise WeightsCorrupt(path, "the header is not a JSON object", offset=_LENGTH_BYTES)
    header = _load(path, raw)
    metadata = _metadata(path, header.pop("__metadata__", None))
    tensors = {name: _tensor(path, name, entry) for name, entry in header.items()}
    header_bytes = _LENGTH_BYTES + len(raw)
    data_bytes = _cover(path, tensors, header_bytes)
    have = file_bytes - header_bytes
    if have < data_bytes:
        problem = f"truncated: its tensors need {header_bytes + data_bytes} bytes, the file has {file_bytes}"
        raise WeightsCorrupt(path, problem, offset=file_bytes)
    if have > data_bytes:
        problem = f"{have - data_bytes} bytes after the last tensor belong to none"
        raise WeightsCorrupt(path, problem, offset=header_bytes + data_bytes)
    return Header(tensors, metadata, header_bytes, data_bytes)


def _load(path: Path, raw: bytes) -> dict[str, Any]:
    # Only spaces may pad: the library writes them, others (newlines) pass it silently and hide an edited header.
    try:
        header = json.loads(raw.rstrip(b" ").decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise WeightsCorrupt(path, "the header is not UTF-8", offset=_LENGTH_BYTES + error.start) from error
    except json.JSONDecodeError as error:
        at = _LENGTH_BYTES + len(error.doc[: error.pos].encode("utf-8", "replace"))
        raise WeightsCorrupt(path, f"the header is not JSON: {error.msg}", offset=at) from error
    except (ValueError, RecursionError) as error:
        raise WeightsCorrupt(path, f"the header is not acceptable: {error}", offset=_LENGTH_BYTES) from error
    if raw.rstrip(b" ")[-1:] != b"}":
        raise WeightsCorrupt(path, "the header is padded with something else than spaces", offset=_LENGTH_BYTES)
    if not isinstance(header, dict):
        raise WeightsCorrupt(path, "the header is not a JSON object", offset=_LENGTH_BYTES)
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise _Duplicate(f"{key[:200]!r} is there twice")
        out[key] = value
    return out


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _metadata(path: Path, value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise WeightsCorrupt(path, "__metadata__ is not a map of text to text", offset=_LENGTH_BYTES)
    return value


def _tensor(path: Path, name: str, entry: object) -> Tensor:
    def wrong(what: str) -> WeightsCorrupt:
        return WeightsCorrupt(path, f"tensor {name[:200]!r}: {what}", offset=_LENGTH_BYTES)

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong("needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise wrong(f"unknown dtype {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or not all(map(_natural, shape)):
        raise wrong("its shape is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)) or offsets[0] > offsets[1]:
        raise wrong("its data_offsets are not [start, stop]")
    want_bits = prod(shape) * bits
    if want_bits % 8 or offsets[1] - offsets[0] != want_bits // 8:
        raise wrong(
            f"its data_offsets span {offsets[1] - offsets[0]} bytes, its shape and dtype need {want_bits / 8:g}"
        )
    return Tensor(dtype, tuple(shape), offsets[0], offsets[1])


def _natural(value: object) -> bool:
    """A size below 2**63. JSON's true is an int to Python, and is none here."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _cover(path: Path, tensors: Mapping[str, Tensor], header_bytes: int) -> int:
    """The bytes that the tensors cover, checked to be one run from 0 without hole or overlap."""
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start > at:
            problem = f"{tensor.start - at} bytes before tensor {name[:200]!r} belong to none"
            raise WeightsCorrupt(path, problem, offset=header_bytes + at)
        if tensor.start < at:
            raise WeightsCorrupt(path, f"tensor {name[:200]!r} overlaps another", offset=header_bytes + tensor.start)
        at = tensor.stop
    return at
