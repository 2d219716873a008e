"""How much memory the torch engine needs, and in which dtype it computes. Reads headers only; imports no torch."""

from __future__ import annotations

import json

from rewarm.messages import ReplicaSpec
from rewarm.units import format_bytes
from snapshots import Checkpoint
from worker.engines.need import Need, NeverFits

_MIB = 2**20

PROCESS_BYTES = 450 * _MIB
"""Without weights and cache. Measured as PSS after the first answers, SmolLM2 on torch 2.13 and transformers 5.19:
660 MiB less 257 of weights and a few of cache, rounded up."""

_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_CAUSAL = ("ForCausalLM", "LMHeadModel")


def generates(checkpoint: Checkpoint) -> bool:
    """Whether it continues text; otherwise it is an encoder, which embeds."""
    return checkpoint.shape.architecture.endswith(_CAUSAL)


def dtype_of(checkpoint: Checkpoint, wanted: str | None) -> str:
    """The name of the torch dtype: ``wanted``, else what config.json says, else the dtype of most stored weights."""
    if wanted not in (None, "auto"):
        return str(wanted)
    config = json.loads((checkpoint.folder / "config.json").read_bytes())
    for field in ("dtype", "torch_dtype"):
        name = str(config.get(field) or "").removeprefix("torch.")
        if name in _FLOATS.values():
            return name
    sizes: dict[str, int] = {}
    for file in checkpoint.files:
        for tensor in file.header.tensors.values():
            if tensor.dtype in _FLOATS:
                sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.data_bytes
    return _FLOATS[max(sizes, key=lambda name: sizes[name])] if sizes else "float32"


def torch_need(checkpoint: Checkpoint, spec: ReplicaSpec) -> Need:
    """Weights, a cache for ``slots`` requests of full context, the process, a reserve. With ``spec.memory_bytes`` the
    cache takes what the rest leaves; requests wait inside the engine for room in it.

    Raise NeverFits when that is not even one request of full context.
    """
    dtype = dtype_of(checkpoint, spec.dtype)
    context = spec.context_length or checkpoint.shape.max_context
    weights = checkpoint.weight_bytes(dtype)
    each = context * checkpoint.shape.kv_bytes_per_token(dtype) if generates(checkpoint) else 0
    if spec.memory_bytes is None:
        wanted = spec.slots * each
        reserve = int((weights + wanted + PROCESS_BYTES) * spec.reserve_fraction)
        return Need(context, weights, wanted, PROCESS_BYTES, reserve)
    usable = int(spec.memory_bytes / (1 + spec.reserve_fraction))
    cache = min(spec.slots * each, usable - weights - PROCESS_BYTES)
    if cache < each:
        short = weights + PROCESS_BYTES + each - usable
        raise NeverFits(
            f"memory {format_bytes(spec.memory_bytes)} is {format_bytes(short * (1 + spec.reserve_fraction))} too "
            f"small: weights {format_bytes(weights)}, process {format_bytes(PROCESS_BYTES)}, cache for one request of "
            f"{context} tokens {format_bytes(each)}, reserve {spec.reserve_fraction:.0%}; raise `memory` or lower "
            f"`context_length`"
        )
    return Need(context, weights, cache, PROCESS_BYTES, spec.memory_bytes - weights - PROCESS_BYTES - cache)
