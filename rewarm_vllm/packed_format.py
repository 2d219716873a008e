"""``rewarm-packed.json`` in a packed snapshot: which tensor of its files is what in the model. Strict, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from snapshots import ManifestInvalid

PACKED_NAME = "rewarm-packed.json"
PACKED_VERSION = 1

_Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$")]
_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class PackedLinear(_Struct, frozen=True):
    """A linear layer whose weight lies packed in ``tensor`` (bytes, U8). ``weight_stays``: others use it plain."""

    module: str
    tensor: str
    rows: _Size
    columns: _Size
    dtype: str  # "bfloat16"
    descriptor: _Hex  # oneDNN's
    weight_stays: bool = False


class PlainTensor(_Struct, frozen=True):
    """A parameter or buffer of the model, as it is. ``tensor``: its name in the files; several may share one."""

    name: str
    tensor: str
    is_parameter: bool


class PackedTable(_Struct, frozen=True):
    version: int
    linears: tuple[PackedLinear, ...]
    plain: tuple[PlainTensor, ...]
    native: tuple[str, ...] = ()
    """Layers that vLLM itself prepares at each load, from plain weights: kernels that we do not pack for."""


def encode(table: PackedTable) -> bytes:
    return msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n"


def parse(raw: bytes, path: Path) -> PackedTable:
    """Raise ManifestInvalid. ``path`` only names it."""
    try:
        table = msgspec.json.decode(raw, type=PackedTable)
    except msgspec.MsgspecError as error:
        raise ManifestInvalid(path, str(error)) from error
    if table.version != PACKED_VERSION:
        raise ManifestInvalid(path, f"is of version {table.version}; this rewarm reads version {PACKED_VERSION}")
    return table
