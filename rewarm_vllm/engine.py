"""An engine for one capture, all in this process, and the canary's question to it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewarm_vllm import capturing
from rewarm_vllm.canary import PROMPT, TOKENS
from rewarm_vllm.job import CaptureJob
from snapshots import Canary, Manifest, Measured, inspect

_CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
_BLOCK_TOKENS = 128


def run(job: CaptureJob, vllm_config: Any) -> list[Manifest]:
    """Capture and publish. ``vllm_config`` is changed: it serves nothing afterwards.

    Raise CaptureRefused, CanaryFailed, what the store raises, and what vLLM raises while it loads.
    """
    from vllm.v1.engine.llm_engine import LLMEngine

    from rewarm_vllm.compiled import compiles

    started = time.perf_counter()
    with capturing.Capture(job) as capture:
        capturing.install(capture)
        _shrink(vllm_config, job)
        engine = LLMEngine.from_vllm_config(vllm_config, disable_log_stats=True)
        try:
            recorded = job.canary or ask(engine, PROMPT)
            if capture.must_swap:
                capture.swap()
            if compiles(vllm_config):
                _compile_the_rest(engine)
            answer = ask(engine, recorded.prompt, len(recorded.tokens))
            phases = job.measured.phases_s | {"capture": time.perf_counter() - started}
            capture.job = replace(job, measured=Measured(job.measured.memory_bytes, phases))
            return capture.publish(recorded, answer.tokens)
        finally:
            engine.engine_core.shutdown()


def ask(engine: Any, prompt: str, tokens: int = TOKENS) -> Canary:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine.add_request(f"canary-{time.monotonic_ns()}", prompt, params)
    while True:
        for output in engine.step():
            if output.finished:
                answer = output.outputs[0]
                return Canary(prompt, tuple(answer.token_ids), answer.text)


def _compile_the_rest(engine: Any) -> None:
    """What vLLM compiles only once somebody asks for it: log-probabilities, of one request and of several. Kept with
    the snapshot, it holds up nobody's first request."""
    from vllm import SamplingParams

    for count in (1, 2):
        for number in range(count):
            params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, logprobs=1)
            engine.add_request(f"compile-{count}-{number}", PROMPT, params)
        while engine.has_unfinished_requests():
            engine.step()


def _shrink(vllm_config: Any, job: CaptureJob) -> None:
    """One short request at a time, and nothing that reports to anybody else."""
    config = vllm_config.model_config
    if vllm_config.device_config.device_type == "cpu":
        vllm_config.parallel_config.worker_cls = _CPU_WORKER
        shape = inspect(Path(config.model)).shape
        blocks = -(-job.context // _BLOCK_TOKENS) + 6
        dtype = str(config.dtype).removeprefix("torch.")
        vllm_config.cache_config.kv_cache_memory_bytes = blocks * _BLOCK_TOKENS * shape.kv_bytes_per_token(dtype)
