"""Digests compared while the engine goes on starting, and before the first forward pass.

Mapped weights that lie in the page cache are in place in a tenth of a second; reading them once more to compare digests
takes several times as long. The engine has other work until its first forward pass (the KV cache, its scheduler), and
nothing uses a weight before that. So the comparison runs beside it, and the first pass waits for its end. A mismatch is
repaired there: the model gets other weights in place, and no answer was made from the wrong ones.

A process that maps weights only so that engines are forked from it reads none of them, and may run no thread. Its
forks begin the comparison, or waive it where the same bytes were compared for one before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from snapshots import CheckpointError, MappedWeights, RestoreOptions, throttle_from_env


class Verification:
    """``repair`` is called with what was wrong, by whoever waits, once. Nothing is compared before :meth:`begin`."""

    def __init__(self, mapped: MappedWeights, repair: Callable[[CheckpointError], None]) -> None:
        self._repair = repair
        self._mapped: MappedWeights | None = mapped
        self._options = RestoreOptions()
        self._problem: BaseException | None = None
        self._settling = threading.Lock()
        self._thread: threading.Thread | None = None

    def guard(self, model: nn.Module) -> None:
        """No forward pass of ``model`` before all is right."""
        handle: Any = None

        def before_forward(*_: Any) -> None:
            self.begin()
            self.settle()
            handle.remove()  # later passes pay nothing

        handle = model.register_forward_pre_hook(before_forward)

    def begin(self, options: RestoreOptions | None = None) -> None:
        """In a thread, unless it runs already or nothing is left to compare."""
        if self._thread is None and self._mapped is not None:
            self._options = options or RestoreOptions(throttle=throttle_from_env())
            self._thread = threading.Thread(target=self._run, name="rewarm-verify", daemon=True)
            self._thread.start()

    def waive(self) -> None:
        """The same bytes were compared before: see :mod:`rewarm_vllm.forked`."""
        self._mapped = None

    def settle(self) -> None:
        """Return once all that was begun is right; raise what kept it from being known, or what the repair raised."""
        if self._thread is None:
            return
        self._thread.join()
        with self._settling:
            if isinstance(self._problem, CheckpointError):
                self._repair(self._problem)  # what it raises, every later pass meets again
            elif self._problem is not None:
                raise self._problem
            self._problem = self._mapped = None

    def _run(self) -> None:
        assert self._mapped is not None
        try:
            self._mapped.populate(self._options)
        except BaseException as error:  # noqa: BLE001 -- whoever waits for the thread raises it
            self._problem = error
