"""What an engine needs: weights, cache for slots × context, processes, reserve. Never weights alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewarm.messages import ReplicaSpec
from snapshots import Checkpoint, ModelShape
from worker.engines.host import HostFailed
from worker.engines.hostfile import HostFile
from worker.engines.need import CPU_PROCESS_BYTES, GPU_PROCESS_BYTES, NeverFits, kv_cache_bytes, vllm_need
from worker.engines.vllm.start import gpu_shares

MIB = 2**20
SHAPE = ModelShape("LlamaForCausalLM", 30, 3, 64, 30 * 3 * 64 * 2, 8192, "bfloat16")
EMPTY = Checkpoint(Path("/m"), SHAPE, (), 0)  # no weights: the arithmetic of the rest


def _spec(slots: int = 4, context: int | None = 2048, memory: int | None = None) -> ReplicaSpec:
    return ReplicaSpec(
        model="m", engine="vllm", served_names=("m",), slots=slots, context_length=context, memory_bytes=memory
    )


def test_the_total_is_its_parts() -> None:
    need = vllm_need(EMPTY, _spec())
    assert need.overhead_bytes == CPU_PROCESS_BYTES
    assert need.total_bytes == need.weights_bytes + need.kv_bytes + need.overhead_bytes + need.reserve_bytes
    assert need.reserve_bytes == pytest.approx(0.25 * (need.total_bytes - need.reserve_bytes), abs=1)


def test_without_a_context_length_the_models_own_counts() -> None:
    assert vllm_need(EMPTY, _spec(context=None)).context == 8192


@given(st.integers(1, 64), st.integers(16, 20_000))
def test_the_cache_holds_every_slots_whole_context(slots: int, context: int) -> None:
    per_request = -(-context // 128) * 128 * SHAPE.kv_bytes_per_token()
    assert kv_cache_bytes(EMPTY, None, slots, context) > slots * per_request


def test_with_a_given_memory_the_cache_takes_what_is_left() -> None:
    wanted = vllm_need(EMPTY, _spec())
    tight = vllm_need(EMPTY, _spec(memory=wanted.total_bytes - 50 * MIB))
    assert tight.total_bytes == wanted.total_bytes - 50 * MIB
    assert kv_cache_bytes(EMPTY, None, 1, 2048) < tight.kv_bytes < wanted.kv_bytes
    generous = vllm_need(EMPTY, _spec(memory=wanted.total_bytes + 500 * MIB))
    assert generous.kv_bytes == wanted.kv_bytes  # more cache than slots × context is of no use


def test_too_little_for_one_request_says_how_much_is_missing() -> None:
    with pytest.raises(NeverFits, match=r"too small.*weights 0 B.*2048 tokens"):
        vllm_need(EMPTY, _spec(memory=100 * MIB))


def test_on_gpus_the_total_is_of_all_of_them_and_ram_is_extra() -> None:
    one, two = vllm_need(EMPTY, _spec(), gpus=1), vllm_need(EMPTY, _spec(), gpus=2)
    assert (one.overhead_bytes, two.overhead_bytes) == (GPU_PROCESS_BYTES, 2 * GPU_PROCESS_BYTES)
    assert one.kv_bytes == two.kv_bytes
    assert two.host_bytes > one.host_bytes > 0


def test_vllm_s_own_share_of_a_gpu_is_derived_never_its_default() -> None:
    need = vllm_need(EMPTY, _spec(), gpus=4)
    host = HostFile(
        replica="m-1", agent_pid=1, spec=_spec(), socket="", report="", token="", gpus=4, need_bytes=need.total_bytes,
        kv_bytes=need.kv_bytes,
    )  # fmt: skip
    shares = gpu_shares(host, need, 24 * 2**30, stages=2)
    assert shares.kv_bytes == need.kv_bytes // 4, "the cache's exact size on each"
    assert shares.device_fraction == pytest.approx(need.total_bytes / 4 / (24 * 2**30))
    assert shares.ranks == 2, "two stages of two"
    with pytest.raises(HostFailed, match="4 GPUs cannot be a pipeline of 3 stages"):
        gpu_shares(host, need, 24 * 2**30, stages=3)
    with pytest.raises(HostFailed, match="of a GPU of"):
        gpu_shares(host, need, need.total_bytes // 5, stages=1)
