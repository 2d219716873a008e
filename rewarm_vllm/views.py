"""Tensors of a snapshot as torch's, over the very memory in which they lie."""

from __future__ import annotations

import torch

from snapshots import TensorView

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def as_torch(view: TensorView) -> torch.Tensor:
    """Raise KeyError for a dtype that torch does not have."""
    return tensor_over(view.data, view.tensor.dtype, view.tensor.shape)


def tensor_over(data: memoryview, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    kind = DTYPES[dtype]
    if not len(data):
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8).view(kind).view(shape)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Of a contiguous tensor in host memory; valid as long as it lives."""
    flat = tensor.detach().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")
