"""Control groups: where they are made, what is written into them. On folders that look like the kernel's; what the
kernel makes of it is shown by test_runaways."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from worker.limits.cgroups import Groups, find_groups
from worker.limits.confinement import Confinement
from worker.limits.sizes import Limits

MIB = 2**20


def v1(root: Path, path: str = "box") -> Path:
    for controller in ("memory", "cpu", "blkio"):
        folder = root / controller / path
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text("")
    proc = root / "proc"
    proc.write_text(f"4:memory:/{path}\n2:cpu:/{path}\n7:blkio:/{path}\n0::/\n")
    return proc


def v2(root: Path, *, procs: str = "") -> Path:
    own = root / "unit.service"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpu io memory pids\n")
    (own / "cgroup.procs").write_text(procs)
    (own / "cgroup.subtree_control").write_text("")
    proc = root / "proc"
    proc.write_text("0::/unit.service\n")
    return proc


def wrote(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_v1_is_used_where_it_is_writable_one_folder_a_controller(tmp_path: Path) -> None:
    groups = find_groups("w:1", v1(tmp_path), tmp_path)
    assert groups is not None and groups.version == 1
    group = groups.make("m-1", Limits(300 * MIB, 1.5))
    assert group is not None
    name = f"rewarm-{groups.mark}-m-1"
    assert wrote(tmp_path / "memory/box" / name) == {"memory.limit_in_bytes": str(300 * MIB)}
    assert wrote(tmp_path / "cpu/box" / name) == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}
    assert group.add(77)
    for controller in ("memory", "cpu", "blkio"):
        assert (tmp_path / controller / "box" / name / "cgroup.procs").read_text() == "77"
    assert group.read_at_most(50e6, "8:0") and group.stand_back(True)
    assert wrote(tmp_path / "blkio/box" / name)["blkio.throttle.read_bps_device"] == "8:0 50000000"
    assert wrote(tmp_path / "cpu/box" / name)["cpu.shares"] == "256"


def test_in_a_container_the_path_is_the_host_s_and_the_mount_is_our_group(tmp_path: Path) -> None:
    v1(tmp_path, ".")
    proc = tmp_path / "proc"
    proc.write_text("4:memory:/docker/0123\n2:cpu:/docker/0123\n")
    groups = find_groups("w:1", proc, tmp_path)
    assert groups is not None and groups.above == {"memory": tmp_path / "memory", "cpu": tmp_path / "cpu"}


def test_v2_only_where_it_was_delegated(tmp_path: Path) -> None:
    proc = v2(tmp_path)
    assert find_groups("w:1", proc, tmp_path) is None, "writable is not enough: others may live there"
    assert not (tmp_path / "unit.service" / "rewarm-main").exists()


def test_v2_delegated_by_systemd(tmp_path: Path) -> None:
    proc = v2(tmp_path, procs=f"{os.getpid()}\n")
    own = tmp_path / "unit.service"
    os.setxattr(own, "user.delegate", b"1")
    groups = find_groups("w:1", proc, tmp_path)
    assert groups is not None and groups.version == 2
    assert (own / "rewarm-main" / "cgroup.procs").read_text() == str(os.getpid()), "none may stay beside groups"
    assert (own / "cgroup.subtree_control").read_text() == "+memory +cpu +io"
    group = groups.make("m-1", Limits(300 * MIB, 0.5))
    assert group is not None
    folder = own / f"rewarm-{groups.mark}-m-1"
    assert wrote(folder) == {"memory.max": str(300 * MIB), "memory.oom.group": "1", "cpu.max": "50000 100000"}
    group.use_cpus(0.25)
    group.read_at_most(None, "8:0")
    group.stand_back(False)
    assert wrote(folder) | {"cpu.max": "25000 100000", "io.max": "8:0 rbps=max", "cpu.weight": "100"} == wrote(folder)
    group.use_cpus(None)
    assert wrote(folder)["cpu.max"] == "50000 100000", "back to its own limit"
    # The next agent of the same unit starts in the folder below.
    proc.write_text("0::/unit.service/rewarm-main\n")
    again = find_groups("w:1", proc, tmp_path)
    assert again is not None and again.above["memory"] == own


def test_a_kill_for_the_limit_is_seen_by_the_kernel_s_counter(tmp_path: Path) -> None:
    groups = Groups(2, {"memory": tmp_path}, "x")
    folder = tmp_path / "rewarm-x-m-1"
    folder.mkdir()
    events = folder / "memory.events"
    events.write_text("low 0\nmax 12\noom 1\noom_kill 1\n")  # of an earlier replica of this name
    group = groups.make("m-1", Limits(MIB))
    assert group is not None and not group.killed
    events.write_text("low 0\nmax 20\noom 2\noom_kill 2\n")
    assert group.killed


@pytest.mark.asyncio
async def test_a_group_goes_when_the_last_thread_of_it_has_ended_and_not_at_the_first_try(tmp_path: Path) -> None:
    """A folder with a file in it stands for a group that still has a thread: neither can be removed."""
    thread = tmp_path / "rewarm-x-m-1" / "thread"
    confinement = Confinement(Groups(1, {"memory": tmp_path}, "x"), "m-1", Limits(), {})
    thread.write_text("")
    tries: list[float] = []

    async def pause(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            thread.unlink()

    await confinement.release(pause)
    assert len(tries) == 3
    assert not thread.parent.exists()


@pytest.mark.asyncio
async def test_one_that_does_not_go_is_told_of_and_swept_by_the_next_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    groups = Groups(1, {"memory": tmp_path}, "x")
    confinement = Confinement(groups, "m-1", Limits(), {})
    stuck = tmp_path / "rewarm-x-m-1" / "thread"
    stuck.write_text("")
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    await confinement.release(pause)
    assert 2 < sum(waited) < 5, "seconds, not for ever"
    assert "cgroup-stays replica=m-1" in caplog.text
    stuck.unlink()
    groups.sweep()
    assert not stuck.parent.exists()


def test_what_cannot_be_made_is_none_and_what_cannot_be_written_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_groups("w:1", tmp_path / "missing", tmp_path) is None
    (tmp_path / "none").write_text("0::/\n")
    assert find_groups("w:1", tmp_path / "none", tmp_path) is None
    assert Groups(1, {"memory": tmp_path / "gone"}, "x").make("m-1", Limits(MIB)) is None
    group = Groups(2, {"memory": tmp_path}, "x").make("m-1", Limits(MIB))
    assert group is not None
    assert not group.read_at_most(1e6, "8:0"), "no such controller here"
    assert "no-cgroup" in caplog.text
