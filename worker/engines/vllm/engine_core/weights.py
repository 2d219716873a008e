"""The loader's observer in the engine process: bytes and phases for the agent, the outcome for the host."""

from __future__ import annotations

from rewarm.states import ReplicaState
from rewarm_vllm import Loaded, Observer
from worker.engines.vllm.loaded import record
from worker.report import LoadedReport, Reporter


class ReportingObserver(Observer):
    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._over = False  # weights that are replaced later do not take the load's phases back

    def reading(self, what: str) -> None:
        if not self._over:
            self._reporter.phase(ReplicaState.RESTORING, 0.0, what)

    def bytes(self, done: int, total: int) -> None:
        if not self._over:
            self._reporter.bytes(done, total)

    def preparing(self, what: str) -> None:
        if not self._over:
            self._reporter.phase(ReplicaState.INITIALISING, 0.05, what)

    def loaded(self, loaded: Loaded) -> None:
        self._over = True
        record(loaded)
        self._reporter.send(LoadedReport(weights=loaded.words, seconds=loaded.seconds))
