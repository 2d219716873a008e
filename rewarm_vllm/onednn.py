"""oneDNN's packed linear weights as bytes, and back as tensors over memory that is mapped: nothing is copied.

torch makes packed tensors but neither writes nor reads them. Their bytes and their layout's description can be had from
``torch.ops.mkldnn``; a tensor over given bytes is made by the C interface that AOTInductor's compiled models use for
their own constants. The description is oneDNN's own memory descriptor: it means something only to the very same oneDNN
on the same instruction set, which is what a packed snapshot's fingerprint names.
"""

from __future__ import annotations

import ctypes
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

PACKABLE = (torch.bfloat16, torch.float32)
"""What oneDNN packs where the CPU has instructions for it: see :func:`packs`. float16 needs some that most do not
have."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How a weight of one shape is packed: bytes, and oneDNN's descriptor of their order."""

    size_bytes: int
    descriptor: bytes


def pack(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` [outputs, inputs] as oneDNN wants it for matrix products of any number of rows. A copy."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


def packing(packed: torch.Tensor) -> Packing:
    descriptor = torch.ops.mkldnn._get_mkldnn_serialized_md(packed)
    return Packing(int(torch.ops.mkldnn._nbytes(packed)), bytes(descriptor.numpy()))


@functools.cache
def packs(dtype: torch.dtype) -> bool:
    """Whether this CPU can compute from packed weights of ``dtype``: bfloat16 asks for AVX-512. vLLM then falls back to
    torch's own product of plain weights, and so do we."""
    if dtype not in PACKABLE:
        return False
    try:
        pack(torch.zeros(16, 16, dtype=dtype))
    except RuntimeError:
        return False
    return True


@functools.cache
def packing_of(rows: int, columns: int, dtype: torch.dtype) -> Packing:
    """Known before any weight is packed: space is reserved first. The layout does not depend on the numbers."""
    return packing(pack(torch.zeros(rows, columns, dtype=dtype)))


def bytes_of(packed: torch.Tensor) -> memoryview:
    """Valid as long as ``packed`` lives."""
    size = packing(packed).size_bytes
    return memoryview((ctypes.c_char * size).from_address(torch.ops.mkldnn.data_ptr(packed))).cast("B")


def over(address: int, rows: int, columns: int, dtype: torch.dtype, descriptor: bytes) -> torch.Tensor:
    """A packed tensor whose bytes lie at ``address``; whoever owns them keeps them for as long as it lives.

    Raise RuntimeError when torch refuses the descriptor.
    """
    shim = _shim()
    sizes = (ctypes.c_int64 * 2)(rows, columns)
    strides = (ctypes.c_int64 * 2)(columns, 1)
    handle = ctypes.c_void_p()
    status = shim.create(
        ctypes.c_void_p(address),
        ctypes.c_int64(2),
        sizes,
        strides,
        ctypes.c_int64(0),
        ctypes.c_int32(shim.dtypes[dtype]),
        ctypes.c_int32(shim.cpu),
        ctypes.c_int32(0),
        ctypes.byref(handle),
        ctypes.c_int32(shim.layout),
        ctypes.c_char_p(descriptor),
        ctypes.c_int64(len(descriptor)),
    )
    if status != 0:
        raise RuntimeError(f"torch makes no packed tensor of {rows}x{columns} {dtype} (status {status})")
    tensor: torch.Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(_capsule(handle.value, None, None))
    return tensor


def linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


@functools.cache
def version() -> str:
    """Of the oneDNN that is in this torch, with its commit: "3.12.0 80afa71"."""
    match = re.search(r"MKL-DNN v(\S+) \(Git Hash (\w{7})", torch.__config__.show())
    return f"{match[1]} {match[2]}" if match else "unknown"


@dataclass(frozen=True, slots=True)
class _Shim:
    create: Any
    layout: int
    cpu: int
    dtypes: dict[torch.dtype, int]


@functools.cache
def _shim() -> _Shim:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))

    def number(name: str) -> int:
        function = getattr(library, name)
        function.restype = ctypes.c_int32
        return int(function())

    create = library.aoti_torch_create_tensor_from_blob_v2
    create.restype = ctypes.c_int32
    dtypes = {dtype: number(f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}") for dtype in PACKABLE}
    return _Shim(create, number("aoti_torch_layout__mkldnn"), number("aoti_torch_device_type_cpu"), dtypes)


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
