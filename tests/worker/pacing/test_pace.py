"""A share of full speed, carried out: reading, cores, and who comes first. On folders in place of the kernel's."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
from pathlib import Path

from worker.limits.cgroups import Group
from worker.limits.sizes import Limits
from worker.pacing import priority
from worker.pacing.guard import Pace
from worker.pacing.pace import LoadPace, disk_of

MB = 10**6


def limit(path: Path) -> float:
    (value,) = struct.unpack("=d", path.read_bytes())
    return float(value)


def group(folder: Path) -> Group:
    folder.mkdir()
    made = Group(2, {"memory": folder, "cpu": folder, "io": folder})
    made.limit(Limits(None, None))
    return made


def said(folder: Path, name: str) -> str:
    return (folder / name).read_text()


def test_held_back_it_reads_slower_has_fewer_cores_and_comes_last_until_it_is_ready(tmp_path: Path) -> None:
    file, folder = tmp_path / "limit", tmp_path / "group"
    pace = LoadPace("m-1", file, full=800 * MB, disk="8:0")
    assert math.isinf(limit(file))
    pace.started(group(folder), [], Pace(0.25, 1.0, "", True))
    cores = len(os.sched_getaffinity(0))
    assert limit(file) == 200 * MB
    assert said(folder, "cpu.max") == f"{int(0.25 * cores * 100_000)} 100000"
    assert (said(folder, "cpu.weight"), said(folder, "io.max")) == ("25", "8:0 rbps=200000000")
    pace.change(Pace(1.0, 1.5, "", True), [])
    assert said(folder, "cpu.weight") == "25", "at full speed, and it still yields"
    pace.change(Pace(0.0, 2.0, "", True), [])
    assert limit(file) == 0
    assert said(folder, "cpu.max") == "1000 100000", "it must still hear a signal"
    pace.ready([])
    assert not file.exists()
    assert said(folder, "cpu.max") == "max 100000"
    assert (said(folder, "cpu.weight"), said(folder, "io.max")) == ("100", "8:0 rbps=max")


def test_a_configured_bandwidth_holds_also_at_full_speed(tmp_path: Path) -> None:
    file = tmp_path / "limit"
    pace = LoadPace("m-1", file, full=800 * MB, configured=100 * MB)
    pace.started(None, [], Pace())
    assert limit(file) == 100 * MB
    pace.change(Pace(0.5, 1.0), [])
    assert limit(file) == 100 * MB, "half of full speed would be more"
    pace.change(Pace(1 / 16, 2.0), [])
    assert limit(file) == 50 * MB


def test_nice_and_the_class_of_reads_of_all_its_threads() -> None:
    code = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        priority.io_class([process.pid], "idle")
        if priority.may_restore():
            priority.stand_back([process.pid], back=True)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == priority.NICE
            priority.stand_back([process.pid], back=False)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 0
        priority.io_class([process.pid], None)
    finally:
        process.communicate(b"\n", timeout=10)


def test_what_works_behind_an_engine_stays_behind_and_still_gets_on() -> None:
    """The end of the load must not raise it, nor may it wait for ever."""
    code = "from worker.pacing import priority; priority.work_behind(); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        priority.stand_back([process.pid], back=False)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == max(
            priority.BEHIND_NICE, os.getpriority(os.PRIO_PROCESS, 0)
        )
        assert priority.BEHIND_NICE < 15, "at 15 and beyond it is a thirtieth of a core and less"
    finally:
        process.communicate(b"\n", timeout=10)


def test_a_disk_is_the_whole_one_and_memory_has_none(tmp_path: Path) -> None:
    found = disk_of(tmp_path)
    assert found is None or Path(f"/sys/dev/block/{found}").exists()
    assert disk_of(tmp_path / "missing") is None
    assert disk_of(Path("/proc")) is None
