"""The worker class on CUDA and ROCm. Importing it imports vLLM's GPU worker."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from worker.engines.vllm.engine_core.reporting import ReportingWorker


class ReportingGpuWorker(ReportingWorker, Worker):
    pass
