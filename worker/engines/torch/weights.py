"""Weights as torch's tensors: over a snapshot's map, or read from a checkpoint, with every byte counted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch

from snapshots import (
    Checkpoint,
    MappedWeights,
    Progress,
    RestoreOptions,
    SnapshotError,
    WeightsCorrupt,
    throttle_from_env,
)

OnBytes = Callable[[int, int], None]
"""(done, total)"""

_CHUNK_BYTES = 4 * 2**20


class Stopped(Exception):
    """The host is asked to stop, and has no use for weights."""


DTYPES: dict[str, Any] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
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
}


def over_map(mapped: MappedWeights) -> dict[str, Any]:
    """The page cache's own memory, shared with whoever maps it. Nothing is read."""
    return {name: _over(view.data, view.tensor.dtype, view.tensor.shape) for name, view in mapped.tensors().items()}


def populate(mapped: MappedWeights, report: OnBytes, cancel: threading.Event) -> None:
    """All pages in, all digests compared. Raise DigestMismatch, WeightsCorrupt, Stopped."""

    def progress(progress: Progress) -> None:
        report(progress.done_bytes, progress.total_bytes)

    try:
        mapped.populate(RestoreOptions(report=progress, cancel=cancel, throttle=throttle_from_env()))
    except SnapshotError as error:
        if cancel.is_set():
            raise Stopped from error
        raise


def read_checkpoint(checkpoint: Checkpoint, report: OnBytes, cancel: threading.Event) -> dict[str, Any]:
    """Into memory of our own: nobody keeps a checkpoint's files from being cut while they are mapped, which would end
    us. Raise WeightsCorrupt, Stopped, OSError."""
    total, done = checkpoint.file_bytes, checkpoint.header_bytes
    throttle = throttle_from_env()
    report(done, total)
    out: dict[str, Any] = {}
    for file in checkpoint.files:
        header = file.header
        block = torch.empty(file.file_bytes - header.header_bytes, dtype=torch.uint8)
        memory = memoryview(block.numpy()) if block.numel() else memoryview(b"")
        with file.path.open("rb", buffering=0) as source:
            source.seek(header.header_bytes)
            at = 0
            while at < len(memory):
                if throttle is not None:
                    with contextlib.suppress(SnapshotError):
                        throttle.wait(min(_CHUNK_BYTES, len(memory) - at), cancel)
                if cancel.is_set():
                    raise Stopped
                count = source.readinto(memory[at : at + _CHUNK_BYTES])
                if not count:
                    raise WeightsCorrupt(file.path, "ended early: it changed while it was read", offset=at)
                at += count
                done += count
                report(done, total)
        for name, tensor in header.tensors.items():
            out[name] = _over(memory[tensor.start : tensor.stop], tensor.dtype, tensor.shape)
    return out


def _over(data: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
    kind = DTYPES[dtype]
    if not len(data):
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(data, dtype=torch.uint8)
    if flat.data_ptr() % kind.itemsize:  # a checkpoint may place tensors anywhere
        flat = flat.clone()
    return flat.view(kind).view(shape)
