"""Modules that vLLM imports only once an engine starts or answers for the first time.

Seen in a rehearsal: what an engine core and its host had in ``sys.modules`` after their first answers, and a process of
the pool had not. Each costs a wake its import; one that is not there (another version, an option not installed) is
passed over.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence

MODULES: Sequence[str] = (
    "anyio._backends._asyncio",
    "anyio.streams.stapled",
    "compressed_tensors",
    "compressed_tensors.quantization",
    "multiprocessing.popen_fork",
    "rewarm_vllm.capturing",
    "rewarm_vllm.engine",
    "rewarm_vllm.packed",
    "rewarm_vllm.packed_capture",
    "rewarm_vllm.sharded_capture",
    "transformers.file_utils",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.entrypoints.serve.utils.fingerprint",
    "vllm.model_executor.layers.fused_moe.eep_reconfigure",
    "vllm.model_executor.layers.fused_moe.oracle.int8",
    "vllm.model_executor.layers.fused_moe.oracle.mxfp8",
    "vllm.model_executor.layers.fused_moe.oracle.nvfp4",
    "vllm.model_executor.layers.quantization.compressed_tensors.utils",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.layers.quantization.online.fp8",
    "vllm.model_executor.layers.quantization.online.int8",
    "vllm.model_executor.models.llama",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.attention.backends.zentorch_sdpa",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.pool.flash_maxsim",
)

_log = logging.getLogger("rewarm.worker.pool")


def import_all() -> None:
    for module in MODULES:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 -- a module that is not needed may fail in any way
            _log.info("event=not-imported module=%s error=%r", module, error)
