"""How much memory an engine needs: weights, KV cache for slots × context, what its processes take, and a reserve. Pure.

The agent asks :func:`vllm_need` before it starts anything, and reserves ``total_bytes`` in its ledger; the host gives
vLLM exactly ``kv_bytes`` for the cache and derives the share of the device from ``total_bytes``. vLLM's own default (92
% of the machine for one model) is never used.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewarm.messages import ReplicaSpec
from rewarm.units import format_bytes
from snapshots import Checkpoint
from worker.engines.vllm import adapters

_MIB = 2**20

CPU_PROCESS_BYTES = 1300 * _MIB
"""API process and engine core together without weights and cache. Measured once, as PSS of one pair of vLLM 0.32 on the
CPU: 1,726 MiB less 257 MiB of weights and 194 MiB of KV cache, rounded up."""

GPU_PROCESS_BYTES = 1536 * _MIB
"""On each GPU: CUDA context, workspaces, NCCL. An assumption, not measured yet."""

GPU_HOST_BYTES = 2048 * _MIB
"""In RAM, of an engine on a GPU: its API process and its core. An assumption, not measured yet."""

GPU_RANK_BYTES = 1536 * _MIB
"""… and of each further GPU's worker process. An assumption, not measured yet."""

_BLOCK_TOKENS = 128
"""vLLM's block on the CPU; on CUDA blocks are smaller and divide it."""


class NeverFits(Exception):
    """The specification contradicts itself: ``memory`` is too small for the weights and one request of full context."""


@dataclass(frozen=True, slots=True)
class Need:
    context: int  # tokens a request may span
    weights_bytes: int
    kv_bytes: int
    overhead_bytes: int  # of the processes themselves
    reserve_bytes: int  # activations, fragmentation, what nobody foresees
    gpus: int = 0  # on so many of them, a like share on each; 0: in RAM
    host_bytes: int = 0  # in RAM beside what the GPUs hold
    adapters_bytes: int = 0  # of the weights

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.overhead_bytes + self.reserve_bytes


def vllm_need(checkpoint: Checkpoint, spec: ReplicaSpec, *, gpus: int = 0) -> Need:
    """The need of one replica, with its adapters. With ``spec.memory_bytes`` the total is that, and the cache takes
    what the rest leaves. On ``gpus`` it is what all of them hold together.

    Raise NeverFits when that is not even one request of full context.
    """
    context = spec.context_length or checkpoint.shape.max_context
    beside = adapters.find(spec, checkpoint).need_bytes(checkpoint, checkpoint.element_bytes(spec.dtype), cpu=not gpus)
    weights = checkpoint.weight_bytes(spec.dtype) + beside
    overhead = gpus * GPU_PROCESS_BYTES or CPU_PROCESS_BYTES
    host = GPU_HOST_BYTES + (gpus - 1) * GPU_RANK_BYTES if gpus else 0
    wanted = kv_cache_bytes(checkpoint, spec.dtype, spec.slots, context)
    if spec.memory_bytes is None:
        reserve = int((weights + wanted + overhead) * spec.reserve_fraction)
        return Need(context, weights, wanted, overhead, reserve, gpus, host, beside)
    usable = int(spec.memory_bytes / (1 + spec.reserve_fraction))
    least = kv_cache_bytes(checkpoint, spec.dtype, 1, context)
    kv = min(wanted, usable - weights - overhead)
    if kv < least:
        short = weights + overhead + least - usable
        raise NeverFits(
            f"memory {format_bytes(spec.memory_bytes)} is {format_bytes(short * (1 + spec.reserve_fraction))} too "
            f"small: weights {format_bytes(weights)}, processes {format_bytes(overhead)}, cache for one request of "
            f"{context} tokens {format_bytes(least)}, reserve {spec.reserve_fraction:.0%}; raise `memory` or lower "
            f"`context_length`"
        )
    return Need(context, weights, kv, overhead, spec.memory_bytes - weights - overhead - kv, gpus, host, beside)


def kv_cache_bytes(checkpoint: Checkpoint, dtype: str | None, slots: int, context: int) -> int:
    """Cache for ``slots`` requests of ``context`` tokens at once, in whole blocks: one more a request because the last
    block is taken before it is needed, one in all that vLLM keeps as its null block."""
    blocks = slots * (-(-context // _BLOCK_TOKENS) + 1) + 1
    return blocks * _BLOCK_TOKENS * checkpoint.shape.kv_bytes_per_token(dtype)
