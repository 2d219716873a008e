"""A worker class that reports: mixed into vLLM's own for each device, it changes nothing of what they do."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import os
import time
from typing import Any

from rewarm.states import ReplicaState
from rewarm_vllm import Loaded, let_go, register, resume, settle, use_observer
from worker.containment import die_with_parent
from worker.engines.vllm import image
from worker.engines.vllm.engine_core.weights import ReportingObserver
from worker.engines.vllm.environment import THREADS_ENV
from worker.engines.vllm.failure import FailureRecorder, recorded
from worker.report import Reporter


class ReportingWorker:
    """Base of ``ReportingCpuWorker`` and ``ReportingGpuWorker``; comes before vLLM's class in their bases."""

    _reporter: Reporter

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A forked engine core did this already; a spawned one, or a tensor-parallel worker, does it here.
        die_with_parent()
        logging.getLogger("vllm.v1.engine.core").addHandler(FailureRecorder())
        rank = kwargs.get("rank", args[2] if len(args) > 2 else 0)
        # Every rank reads every file: one of them counts.
        self._reporter = Reporter.from_env() if rank == 0 else Reporter(None)
        register()
        if not image.building():
            use_observer(ReportingObserver(self._reporter))
        self._reporter.phase(ReplicaState.STARTING, 0.85, "the engine core initialises its worker")
        with recorded("start"):
            super().__init__(*args, **kwargs)

    def let_go(self) -> None:
        """In the process that made this worker ahead: nothing is kept from being evicted for it."""
        let_go(self.model_runner.get_model())  # type: ignore[attr-defined]

    def resume(self, loaded: Loaded, trusted: bool) -> None:
        """In a fork of the process that made this worker ahead: what belongs to one start. ``trusted``: the weights'
        bytes were compared for an engine before this one."""
        began = time.perf_counter()
        self._reporter = Reporter.from_env()
        observer = ReportingObserver(self._reporter)
        use_observer(observer)
        with recorded("load"):
            as_made = resume(self.model_runner.get_model(), compared=trusted)  # type: ignore[attr-defined]
        if as_made:
            observer.loaded(dataclasses.replace(loaded, seconds=time.perf_counter() - began))
        self._reporter.phase(ReplicaState.INITIALISING, 0.7, "the model is ready to run")
        self._reporter.close()

    def init_device(self) -> None:
        with recorded("start"):
            super().init_device()  # type: ignore[misc]
        self._reporter.phase(ReplicaState.STARTING, 1.0, "building the model")

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        with recorded("load"):
            super().load_model(*args, **kwargs)  # type: ignore[misc]
        self._reporter.phase(ReplicaState.INITIALISING, 0.3, "weights are in place")

    def determine_available_memory(self) -> int:
        with recorded("memory"):
            available: int = super().determine_available_memory()  # type: ignore[misc]
        self._reporter.phase(ReplicaState.INITIALISING, 0.4, "allocating the KV cache")
        return available

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> None:
        with recorded("memory"):
            super().initialize_from_config(*args, **kwargs)  # type: ignore[misc]
        self._reporter.phase(ReplicaState.INITIALISING, 0.6, "the KV cache is allocated")

    def compile_or_warm_up_model(self) -> Any:
        with recorded("load"):
            settle(self.model_runner.get_model())  # type: ignore[attr-defined]
        with recorded("start"):
            result = super().compile_or_warm_up_model()  # type: ignore[misc]
        _return_free_memory()
        self._reporter.phase(ReplicaState.INITIALISING, 0.7, "the model is ready to run")
        self._reporter.close()
        return result


def _return_free_memory() -> None:
    """What the load needed only for a while goes back to the machine; glibc would keep it."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def engine_threads() -> int:
    """How many threads the model runs on, decided before the fork, when OpenMP was held to one."""
    return max(1, int(os.environ.get(THREADS_ENV, "1")))
