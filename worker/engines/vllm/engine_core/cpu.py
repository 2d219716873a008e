"""The worker class on the CPU. Importing it imports vLLM's CPU worker."""

from __future__ import annotations

from typing import Any

import torch
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.cpu_worker import CPUWorker

from rewarm_vllm import Loaded
from worker.engines.vllm import image
from worker.engines.vllm.engine_core.reporting import ReportingWorker, engine_threads
from worker.engines.vllm.engine_core.sleeping import SleepingWorker


class ReportingCpuWorker(ReportingWorker, SleepingWorker, CPUWorker):
    """Threads: this process was forked from one that never ran a parallel region, so that its first region makes its
    own. One that is made ahead, to be forked, must not run any either."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not image.building():
            # Before vLLM's own constructor, which makes this call do nothing afterwards.
            torch.set_num_threads(engine_threads())
        super().__init__(*args, **kwargs)

    def resume(self, loaded: Loaded, trusted: bool, seed: int | None = None) -> None:
        """``seed``: forks share the state of what chance is drawn from, and would all draw the same. None: they are
        meant to."""
        if seed is not None:
            set_random_seed(seed)
        torch.set_num_threads(engine_threads())
        super().resume(loaded, trusted)
