"""What to start and stop, whether it fits, and why it failed: decided without a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rewarm.messages import ReplicaSpec, Want
from rewarm.states import FailureReason, ReplicaState
from worker.devices.device import RAM
from worker.devices.lock import DeviceLock
from worker.enginelog import open_log, rotate, tail
from worker.engines.estimate import UNKNOWN_BYTES, CannotEstimate, estimate
from worker.memory import Holding, Machine, MemoryLedger, read_machine
from worker.oom import OomWatch, says_out_of_memory, told_apart, with_advice
from worker.reconcile import UNWANTED_AFTER_S, Abandon, Accept, Forget, Known, Start, Stop, Tell, reconcile

S = ReplicaState
MIB = 2**20
SPEC = ReplicaSpec(model="m", engine="command", served_names=("m",), slots=1)


def want(state: ReplicaState = S.READY, **more: Any) -> Want:
    fields: dict[str, Any] = {"replica": "m-1", "worker": "w", "model": "m", "spec": SPEC, "spec_hash": "h", "term": 5}
    return Want(state=state, **fields | more)


def here(state: ReplicaState, *, gone: bool = False, term: int = 5, attempt: int = 1, unwanted_s: float = 0.0) -> Any:
    return {"m-1": Known(term, attempt, state, gone, unwanted_s)}


# --- reconcile ---------------------------------------------------------------------------------------------------


def test_what_is_wanted_and_not_here_is_started() -> None:
    w = want()
    assert reconcile([w], {}) == [Start(w)]
    assert reconcile([w], {}, draining=True) == []


def test_an_older_term_is_refused_an_equal_or_newer_one_accepted() -> None:
    old, new = want(S.STOPPED, term=4), want(S.STOPPED, term=6)
    assert reconcile([old], here(S.READY)) == []
    assert reconcile([new], here(S.READY)) == [Stop(new)]


def test_a_failed_replica_starts_again_for_a_higher_attempt_once_it_is_gone() -> None:
    same, next_ = want(), want(attempt=2)
    assert reconcile([same], here(S.FAILED, gone=True)) == []
    assert reconcile([next_], here(S.FAILED, gone=True)) == [Start(next_)]
    assert reconcile([next_], here(S.FAILED)) == [Accept(next_)]


def test_a_want_during_the_drain_is_passed_on_and_after_the_stop_starts_anew() -> None:
    w = want()
    assert reconcile([w], here(S.DRAINING)) == [Accept(w)]
    assert reconcile([w], here(S.STOPPED, gone=True)) == [Start(w)]


def test_a_want_for_sleep_is_for_what_lives_and_starts_nothing() -> None:
    w = want(state=S.ASLEEP)
    assert reconcile([w], here(S.READY)) == [Accept(w)]
    assert reconcile([w], here(S.ASLEEP)) == [Accept(w)]
    assert reconcile([w], here(S.READY), draining=True) == []
    assert reconcile([w], here(S.STOPPED, gone=True)) == []
    assert reconcile([w], {}) == [Tell(w)]


def test_ended_replicas_are_told_until_the_leader_has_removed_the_want() -> None:
    stop = want(S.STOPPED)
    assert reconcile([stop], here(S.STOPPED, gone=True)) == []
    assert reconcile([], here(S.STOPPED, gone=True)) == [Forget("m-1")]
    assert reconcile([], here(S.FAILED)) == []  # its processes are not gone yet
    assert reconcile([stop], {}) == [Tell(stop)]


def test_a_running_replica_that_nobody_names_is_drained_after_a_while() -> None:
    assert reconcile([], here(S.READY, unwanted_s=UNWANTED_AFTER_S - 1)) == []
    assert reconcile([], here(S.READY, unwanted_s=UNWANTED_AFTER_S)) == [Abandon("m-1")]


# --- memory ------------------------------------------------------------------------------------------------------


def test_never_fits_and_no_room_say_the_arithmetic() -> None:
    ledger = MemoryLedger(1000 * MIB, {"a": Holding(600 * MIB, 100 * MIB)})
    machine = Machine(4000 * MIB, 3000 * MIB)
    assert ledger.admit(400 * MIB, "", machine).fits
    never = ledger.admit(1001 * MIB, "", machine)
    assert never.reason is FailureReason.NEVER_FITS
    assert "1001.0 MiB" in never.message
    assert "1000.0 MiB" in never.message
    full = ledger.admit(401 * MIB, "", machine)
    assert full.reason is FailureReason.NO_ROOM
    assert "400.0 MiB is left" in full.message
    assert "a 600.0 MiB" in full.message


def test_what_others_use_and_what_is_promised_but_untouched_is_subtracted() -> None:
    ledger = MemoryLedger(4000 * MIB, {"a": Holding(600 * MIB, 100 * MIB)})
    machine = Machine(4000 * MIB, 1000 * MIB)
    assert ledger.admit(500 * MIB, "", machine).fits
    assert ledger.admit(501 * MIB, "", machine).reason is FailureReason.NO_ROOM
    assert ledger.admit(301 * MIB, "", machine, [Holding(200 * MIB)]).reason is FailureReason.NO_ROOM
    assert ledger.free_bytes(machine) == 500 * MIB


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert 0 < machine.available_bytes <= machine.total_bytes


def test_a_command_s_need_is_its_source_with_reserve_or_what_is_configured(tmp_path: Path) -> None:
    weights = tmp_path / "w.gguf"
    weights.write_bytes(b"x" * MIB)
    by_source = estimate(ReplicaSpec(model="m", engine="command", served_names=("m",), slots=1, source=str(weights)))
    assert by_source.total_bytes > by_source.read_bytes == MIB
    given = ReplicaSpec(model="m", engine="command", served_names=("m",), slots=1, memory_bytes=7 * MIB)
    assert estimate(given).total_bytes == 7 * MIB
    assert estimate(SPEC).total_bytes == UNKNOWN_BYTES


@pytest.mark.parametrize("engine", ["command", "vllm"])
def test_missing_weights_are_found_before_anything_is_started(engine: str, tmp_path: Path) -> None:
    spec = ReplicaSpec(model="m", engine=engine, served_names=("m",), slots=1, source=str(tmp_path / "nothing"))
    with pytest.raises(CannotEstimate) as error:
        estimate(spec)
    assert error.value.reason is FailureReason.WEIGHTS_MISSING
    assert "nothing" in error.value.message


@pytest.mark.asyncio
async def test_promises_of_another_agent_count_until_it_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "device.lock"
    mine = DeviceLock(path)
    async with mine.hold() as others:
        assert others == {}
        mine.promise("m-1", {RAM: 100})
    async with mine.hold() as others:
        assert others == {}  # its own are the ledger's business
    text = path.read_text()
    path.write_text(text.replace(f'"agent_pid":{os.getpid()}', '"agent_pid":1'))
    async with mine.hold() as others:
        assert others == {}  # that pid is another process than the one that promised
    await mine.release("m-1")
    assert path.read_text() == "[]"


@pytest.mark.parametrize(
    "text",
    ["torch.OutOfMemoryError: CUDA out of memory", "std::bad_alloc", "DefaultCPUAllocator: can't allocate memory"],
)
def test_an_engine_s_own_words_for_out_of_memory(text: str) -> None:
    assert says_out_of_memory(text)
    assert not says_out_of_memory("connection refused")


@pytest.mark.parametrize(
    ("words", "phase", "reason", "advice"),
    [
        # torch, while vLLM or transformers read weights
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 "
         "GiB of which 1.10 GiB is free.", S.RESTORING, FailureReason.WEIGHTS_OUT_OF_MEMORY, "smaller `dtype`"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 4831838208 bytes", S.RESTORING, FailureReason.WEIGHTS_OUT_OF_MEMORY, "smaller `dtype`"),
        # vLLM 0.32
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
         "initializing the engine.", S.INITIALISING, FailureReason.CACHE_OUT_OF_MEMORY, "4 slots of 2048 tokens"),
        ("ValueError: To serve at least one request with the models's max seq len (8192), (1.00 GiB KV cache is "
         "needed, which is larger than the available KV cache memory (0.50 GiB).", S.STARTING,
         FailureReason.CACHE_OUT_OF_MEMORY, "lower `slots` or `context_length`"),
        ("CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try lowering "
         "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", S.INITIALISING,
         FailureReason.OUT_OF_MEMORY, "lower `slots`, or raise `reserve`"),
        # llama.cpp
        ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 7605.33 MiB on device 0: cudaMalloc failed: out of "
         "memory\nllama_model_load: error loading model: unable to allocate CUDA0 buffer", S.STARTING,
         FailureReason.WEIGHTS_OUT_OF_MEMORY, "quantised checkpoint"),
        ("load_tensors: offloaded 29/29 layers to GPU\nllama_kv_cache: failed to allocate buffer for kv cache\n"
         "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
         S.STARTING, FailureReason.CACHE_OUT_OF_MEMORY, "lower `slots`"),
        ("ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 1073741824\ngraph_reserve: failed to "
         "allocate compute buffers", S.INITIALISING, FailureReason.OUT_OF_MEMORY, "lower `slots`"),
        # the kernel says only that it was memory: the phase tells of what
        ("the engine's host was ended by SIGKILL: the kernel ran out of memory", S.RESTORING,
         FailureReason.WEIGHTS_OUT_OF_MEMORY, "the weights do not fit"),
        ("the engine's host was ended by SIGKILL: the kernel ran out of memory", S.READY,
         FailureReason.OUT_OF_MEMORY, "what 4 requests at once need"),
        ("the engine's host was ended by SIGKILL: the kernel ran out of memory", S.STARTING,
         FailureReason.OUT_OF_MEMORY, "give it more `memory`"),
    ],
)  # fmt: skip
def test_out_of_memory_is_told_apart_each_with_its_advice(
    words: str, phase: ReplicaState, reason: FailureReason, advice: str
) -> None:
    message, _, log = words.partition("\n")
    told = told_apart(message, words if log else "", phase, slots=4, context=2048)
    assert told.reason is reason
    assert advice in told.message
    assert told.message.startswith(message)


def test_an_engine_s_own_refusal_gets_the_advice_of_a_cache_only_where_it_is_one() -> None:
    words = "ValueError: 1.00 GiB KV cache is needed, which is larger than the available KV cache memory"
    assert "lower `slots`" in with_advice(words, 4, 2048)
    assert with_advice("memory 1 GiB is 2 GiB too small", 4, 2048) == "memory 1 GiB is 2 GiB too small"


def test_a_kill_without_the_kernel_s_evidence_is_not_out_of_memory() -> None:
    watch = OomWatch()
    assert not watch.explains(-9)
    watch._before = dict.fromkeys(watch._before, -1)  # as if a counter had grown since
    assert watch.explains(-9)
    assert watch.explains(137)
    assert not watch.explains(1)


# --- the engine's log --------------------------------------------------------------------------------------------


def test_the_tail_is_this_attempt_s_only_and_rotation_keeps_copies(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    for number in (1, 2):
        descriptor, since = open_log(path, f"attempt {number}")
        os.write(descriptor, f"output {number}\n".encode())
        assert tail(path, since) == f"output {number}"
        assert rotate(path, limit=10, keep=2)
        os.write(descriptor, b"after\n")
        os.close(descriptor)
        assert path.read_bytes() == b"after\n"  # the writer goes on at the new end
    assert "output 2" in path.with_name("engine.log.1").read_text()
    assert "output 1" in path.with_name("engine.log.2").read_text()
