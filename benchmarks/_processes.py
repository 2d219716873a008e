"""Programs that a benchmark starts, what they cost in CPU and memory, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "programs"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def raise_file_limit() -> None:
    """As many open files as the system allows, for us and the programs that we start."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def die_with_us() -> None:
    """Runs in the child: a benchmark that is killed must leave no server behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """A process group of ours with its output in a file."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.popen = popen
        self.log = log

    @property
    def pid(self) -> int:
        return self.popen.pid

    def tail(self, size: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def alive(self) -> None:
        if self.popen.poll() is not None:
            raise RuntimeError(f"{self.name} exited with {self.popen.returncode}:\n{self.tail()}")

    def stop(self, within_s: float = 20.0) -> None:
        """SIGTERM to the program, then SIGKILL to whatever is left of its group."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(within_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()


@contextlib.contextmanager
def running(name: str, argv: Sequence[str], folder: Path, *, env: Mapping[str, str] | None = None) -> Iterator[Program]:
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1", **(env or {})},
            start_new_session=True,
            preexec_fn=die_with_us,
        )
    program = Program(name, popen, log)
    try:
        yield program
    finally:
        program.stop()


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def wait_for_port(program: Program, port: int, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not accepts(port):
        program.alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{program.name} does not listen on {port} after {within_s:.0f} s:\n{program.tail()}")
        time.sleep(0.02)


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of a process and the children it has now."""
    process = psutil.Process(pid)
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total
