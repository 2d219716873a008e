"""The engine core as a fork of this process, which has everything imported: 7 s to the first token instead of 19.

Only on the CPU: a CUDA context does not survive a fork. vLLM decides otherwise under WSL and then spawns; that is
slower, and the worker class takes care of what the hook here does.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from worker.containment import die_with_parent


class _Hook:
    """``os.register_at_fork`` cannot be undone: one hook, armed while an engine core is being forked."""

    def __init__(self) -> None:
        self._parent = 0
        self._sockets: Sequence[socket.socket] = ()
        self._registered = False

    @contextmanager
    def armed(self, sockets: Sequence[socket.socket]) -> Iterator[None]:
        if not self._registered:
            os.register_at_fork(after_in_child=self._in_child)
            self._registered = True
        self._parent, self._sockets = os.getpid(), sockets
        try:
            yield
        finally:
            self._parent, self._sockets = 0, ()

    def _in_child(self) -> None:
        if not self._parent:
            return
        if not die_with_parent(self._parent):
            os._exit(1)
        # The event loop's wake-up pipe is shared with the parent: a signal to this child would ring there.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for listening in self._sockets:  # else connections would be accepted by nobody once the host is gone
            listening.close()


_hook = _Hook()


@contextmanager
def forking(sockets: Sequence[socket.socket]) -> Iterator[None]:
    """Processes that vLLM makes inside are forks, die with this process and do not hold ``sockets``.

    Enter only after the engine's configuration exists: making it resets the method to spawn.
    """
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    # What is frozen the collector never walks again, in neither process: the pages stay shared.
    gc.collect()
    gc.freeze()
    with _hook.armed(sockets):
        yield
