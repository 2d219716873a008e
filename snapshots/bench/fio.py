"""The disk's own limit: the best of a few ways that fio reads the same file past the page cache."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Setting:
    engine: str
    block: str
    jobs: int
    depth: int
    memory: str = "malloc"

    @property
    def name(self) -> str:
        return f"{self.engine} bs={self.block} jobs={self.jobs} depth={self.depth} mem={self.memory}"


SWEEP = (
    Setting("psync", "4M", 4, 1),
    Setting("psync", "1M", 4, 1),
    Setting("psync", "4M", 8, 1),
    Setting("libaio", "4M", 1, 8),
    Setting("libaio", "1M", 1, 32),
    Setting("io_uring", "4M", 1, 8),
    # A disk that takes so many pieces of memory in one request (virtio: 254) gets requests of 1 MiB from small pages,
    # and of 4 MiB from huge ones. fio has only such huge pages as root has reserved: vm.nr_hugepages=32 is enough.
    Setting("psync", "4M", 4, 1, "mmaphuge"),
    Setting("libaio", "4M", 1, 8, "mmaphuge"),
)


def available() -> bool:
    return shutil.which("fio") is not None


def read(path: Path, setting: Setting) -> tuple[float, float]:
    """Wall and CPU seconds to read the file once. Raise OSError when fio cannot do it so here."""
    size = path.stat().st_size // 2**22 * 2**22
    command = [
        "fio",
        "--name=read",
        f"--filename={path}",
        "--rw=read",
        "--direct=1",
        "--readonly",
        "--invalidate=0",
        f"--ioengine={setting.engine}",
        f"--bs={setting.block}",
        f"--iodepth={setting.depth}",
        f"--mem={setting.memory}",
        f"--numjobs={setting.jobs}",
        f"--size={size // setting.jobs // 2**22 * 2**22}",
        f"--offset_increment={size // setting.jobs // 2**22 * 2**22}",
        "--thread",
        "--group_reporting",
        "--output-format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "{" not in done.stdout:
        raise OSError(f"fio: {done.stderr.strip()[:300] or done.stdout.strip()[:300]}")
    (job,) = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    if job["error"] or not job["read"]["io_bytes"]:
        raise OSError(f"fio: {setting.name} read nothing")
    seconds = job["read"]["runtime"] / 1000
    # Of the whole file, though a few MiB at its end may not have been a multiple of the jobs.
    seconds *= path.stat().st_size / job["read"]["io_bytes"]
    return seconds, (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds


def best(path: Path, *, keep: int = 1) -> tuple[list[Setting], dict[str, float]]:
    """The ``keep`` fastest settings, and the wall seconds of all: each twice, in turn, the better one counts."""
    seconds: dict[Setting, float] = {}
    for _ in range(2):
        for setting in SWEEP:
            try:
                seconds[setting] = min(seconds.get(setting, float("inf")), read(path, setting)[0])
            except OSError:
                continue  # an engine that this kernel does not have
    fastest = sorted(seconds, key=lambda setting: seconds[setting])[:keep]
    return fastest, {setting.name: took for setting, took in seconds.items()}


def read_best(path: Path, settings: list[Setting]) -> tuple[float, float]:
    """The disk's limit now: the fastest of the settings."""
    return min(read(path, setting) for setting in settings)
