"""An engine of a few lines, for the pool's own machinery: real processes, real forks, faults on demand.

Files in the folder ``TOY`` (environment) say what goes wrong: ``load-fails``, ``load-hangs``, ``fork-hangs``,
``fork-dies``; ``fork-fails`` with the text ``first`` or ``second``: which of the two forks. A model's ``args`` say what
its preparation does: ``broken``, ``thread``, ``hang``, ``exit``; with ``in parts`` building the whole engine fails,
with ``lost once`` it dies of it the first time, with ``unfit`` it is not tried. The host of a replica writes
``REPLICA.json`` and waits to be stopped.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from rewarm.messages import ReplicaSpec
from snapshots import THROTTLE_ENV
from worker.engines.host import HostContext, Serve
from worker.engines.hostfile import HostFile


def folder() -> Path:
    return Path(os.environ["TOY"])


def _before_fork() -> None:
    if (folder() / "fork-hangs").exists():
        time.sleep(600)
    if (folder() / "fork-dies").exists():
        os.kill(os.getpid(), signal.SIGKILL)


_fork = os.fork
_forked_once = False  # in the process between the one that is forked from and the new one


def _scarce_fork() -> int:
    global _forked_once
    fault = folder() / "fork-fails"
    if fault.exists() and fault.read_text() == ("second" if _forked_once else "first"):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    pid = _fork()
    if pid == 0:
        _forked_once = not _forked_once
    return pid


class Toy:
    need_bytes = 32 * 2**20

    def unusable(self) -> str:
        return ""

    def unsuitable(self, spec: ReplicaSpec) -> str:
        return "its `env` is read while the engine is imported" if spec.env else ""

    def versions(self) -> dict[str, str]:
        return {"toy": (folder() / "version").read_text()}

    def environment(self, environment: MutableMapping[str, str]) -> None:
        environment["TOY_PREPARED"] = "yes"

    def load(self) -> None:
        if (folder() / "load-fails").exists():
            raise ImportError("no module named toy")
        if (folder() / "load-hangs").exists():
            time.sleep(600)
        os.register_at_fork(before=_before_fork)
        os.fork = _scarce_fork

    def prepare(self, host: HostFile, whole: bool) -> tuple[Any, str]:
        match host.spec.args:
            case ("in parts",) if whole:
                raise RuntimeError("this one needs threads of its own")
            case ("unfit",) if whole:
                return f"for {host.spec.model}", "its snapshot was made on another CPU"
            case ("lost once",) if whole and not (folder() / "lost").exists():
                (folder() / "lost").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            case ("broken",):
                raise ValueError("config.json: no architecture")
            case ("thread",):
                threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
            case ("hang",):
                time.sleep(600)
            case ("exit",):
                os._exit(3)
        return f"for {host.spec.model}", ""

    def unsafe(self) -> str:
        return "CUDA is initialised" if (folder() / "cuda").exists() else ""

    def serve(self, prepared: Any, proven: Sequence[str]) -> Serve:
        async def serve(host: HostFile, context: HostContext) -> None:
            said = {
                "pid": os.getpid(),
                "parent": os.getppid(),
                "session": os.getsid(0),
                "prepared": prepared,
                "proven": list(proven),
                "descriptors": len(list(Path("/proc/self/fd").iterdir())),
                "environment": os.environ["TOY_PREPARED"],
                "throttle": os.environ.get(THROTTLE_ENV),
            }
            path = folder() / f"{host.replica}.new"
            path.write_text(json.dumps(said))
            path.rename(folder() / f"{host.replica}.json")
            await context.stopping.wait()

        return serve


KIND = Toy()
