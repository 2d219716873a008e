"""The bytes to read: one file of the shapes of a real model, published in a store of its own."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from rewarm import __version__
from snapshots.fingerprint import tensor_table
from snapshots.layout import TensorSpec, plan_parts
from snapshots.manifest import FileKind, Fingerprint, Flavour, Manifest, Source
from snapshots.store import Store

MODEL = "bench"
_HIDDEN, _INNER, _VOCABULARY = 2048, 6144, 65536
_NOISE_BYTES = 64 * 2**20


def make(root: Path, size_bytes: int) -> Path:
    """Write about ``size_bytes`` of weights into a new store at ``root``; return the one safetensors file."""
    tensors = _tensors(size_bytes)
    (part,) = plan_parts(tensors, metadata={"format": "pt"}, part_bytes=2**62)
    config = json.dumps({"architectures": ["Bench"]}).encode()
    noise = memoryview(random.Random(1).randbytes(_NOISE_BYTES))
    store = Store(root)
    with store.begin(MODEL, {part.name: part.file_bytes, "config.json": len(config)}) as staging:
        out = staging.file(part.name, FileKind.WEIGHTS)
        out.write(part.header)
        for piece in _pieces(noise, part.file_bytes - len(part.header)):
            out.write(piece)
        weights = out.finish()
        extra = staging.file("config.json", FileKind.EXTRA)
        extra.write(config)
        manifest = Manifest(
            model=MODEL,
            flavour=Flavour.PORTABLE,
            created=0.0,
            writer=f"rewarm {__version__}",
            chunk_bytes=staging.chunk_bytes,
            files=(weights, extra.finish()),
            fingerprint=Fingerprint(tensor_table(tensors)),
            source=Source("made for a benchmark"),
        )
        return staging.publish(manifest) / part.name


def _tensors(size_bytes: int) -> Sequence[TensorSpec]:
    vocabulary = max(1024, min(_VOCABULARY, size_bytes // 8 // (_HIDDEN * 2)))
    tensors = [TensorSpec("model.embed_tokens.weight", "BF16", (vocabulary, _HIDDEN))]
    size, layer = tensors[0].data_bytes, 0
    while size < size_bytes:
        name = f"model.layers.{layer}"
        block = [
            TensorSpec(f"{name}.self_attn.qkv_proj.weight", "BF16", (_HIDDEN * 2, _HIDDEN)),
            TensorSpec(f"{name}.self_attn.qkv_proj.bias", "BF16", (_HIDDEN * 2,)),
            TensorSpec(f"{name}.self_attn.o_proj.weight", "BF16", (_HIDDEN, _HIDDEN)),
            TensorSpec(f"{name}.mlp.gate_up_proj.weight", "BF16", (_INNER * 2, _HIDDEN)),
            TensorSpec(f"{name}.mlp.down_proj.weight", "BF16", (_HIDDEN, _INNER)),
            TensorSpec(f"{name}.input_layernorm.weight", "BF16", (_HIDDEN,)),
        ]
        tensors += block
        size += sum(tensor.data_bytes for tensor in block)
        layer += 1
    return tensors


def _pieces(noise: memoryview, size: int) -> Iterator[memoryview]:
    """``size`` bytes, shifted a little each time round, so that no two blocks are the same."""
    done = 0
    while done < size:
        start = done // len(noise) * 4099 % (len(noise) // 2)
        piece = noise[start : min(len(noise), start + size - done)]
        yield piece
        done += len(piece)


def drop_from_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def bring_into_cache(path: Path) -> None:
    buffer = bytearray(16 * 2**20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
