"""Control groups: one a replica, with limits and weights, made where this user may make them. v2 and v1.

v2 is used where systemd delegated its group to us (``Delegate=yes``: it says so in an extended attribute), or where the
process is alone at the root of a container's own. A group that has processes may have no groups with controllers
below it, so those that are in ours move into one of their own first. v1 is used where the folder is writable.

Nothing here raises for a file that cannot be written: it is logged once, and what it would have limited is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from worker.limits.sizes import Limits

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
USUAL_WEIGHT = 100
USUAL_SHARES = 1024
BACK = 0.25
"""Of the usual weight, for who stands back. Not less: on a machine where all cores are always wanted, a load with next
to no weight would never end."""
_PREFIX = "rewarm-"
_OURS = "rewarm-main"  # in v2: where the processes that were in the delegated group are now
_CONTROLLERS = ("memory", "cpu", "io")
_V1 = {"memory": "memory", "cpu": "cpu", "io": "blkio"}
_log = logging.getLogger("rewarm.worker.cgroups")


@dataclass(frozen=True, slots=True)
class Groups:
    """Where groups can be made: controller (``memory``, ``cpu``, ``io``) → the folder above. All the same in v2."""

    version: int
    above: Mapping[str, Path]
    mark: str  # of this worker's

    def make(self, replica: str, limits: Limits) -> Group | None:
        """None where no memory group can be made. Left from an earlier one of that name: used again, it is empty."""
        folders = {}
        for controller, above in self.above.items():
            folder = above / f"{_PREFIX}{self.mark}-{replica.replace('/', '-')}"
            try:
                folder.mkdir(exist_ok=True)
                folders[controller] = folder
            except OSError as error:
                _log.warning("event=no-cgroup controller=%s error=%s", controller, error)
        if "memory" not in folders:
            return None
        group = Group(self.version, folders)
        group.limit(limits)
        return group

    def sweep(self) -> None:
        """Remove what an agent left behind that was killed; what still has processes stays."""
        for above in set(self.above.values()):
            for folder in above.glob(f"{_PREFIX}{self.mark}-*"):
                with contextlib.suppress(OSError):
                    folder.rmdir()


@dataclass(slots=True)
class Group:
    """``slow`` and ``read_rate`` are as last set."""

    version: int
    folders: Mapping[str, Path]
    limits: Limits = field(default_factory=Limits)
    kills_before: int = 0

    def limit(self, limits: Limits) -> None:
        self.limits = limits
        self.kills_before = self._kills()
        if limits.memory_bytes is not None:
            if self.version == 2:
                self._write("memory", "memory.max", str(limits.memory_bytes))
                self._write("memory", "memory.oom.group", "1")
            else:
                self._write("memory", "memory.limit_in_bytes", str(limits.memory_bytes))
        self.use_cpus(limits.cpus)

    def add(self, pid: int) -> bool:
        """It and whatever it starts from now on."""
        done = [self._write(name, "cgroup.procs", str(pid)) for name in self._distinct()]
        return all(done)

    def use_cpus(self, cpus: float | None) -> None:
        """At most so many cores' time; None: as its limits say."""
        cpus = self.limits.cpus if cpus is None else min(cpus, self.limits.cpus or cpus)
        quota = None if cpus is None else max(1000, int(cpus * PERIOD_US))
        if self.version == 2:
            self._write("cpu", "cpu.max", f"{'max' if quota is None else quota} {PERIOD_US}")
        else:
            self._write("cpu", "cpu.cfs_period_us", str(PERIOD_US))
            self._write("cpu", "cpu.cfs_quota_us", str(-1 if quota is None else quota))

    def stand_back(self, back: bool) -> bool:
        """Yield the cores to others (``back``), or take them as anybody."""
        if self.version == 2:
            return self._write("cpu", "cpu.weight", str(int(USUAL_WEIGHT * (BACK if back else 1))))
        return self._write("cpu", "cpu.shares", str(int(USUAL_SHARES * (BACK if back else 1))))

    def read_at_most(self, bytes_per_s: float | None, device: str) -> bool:
        """From the disk ``device`` (``major:minor``); None: no limit. False where the kernel has no such limit."""
        if self.version == 2:
            return self._write("io", "io.max", f"{device} rbps={'max' if bytes_per_s is None else int(bytes_per_s)}")
        return self._write(
            "io", "blkio.throttle.read_bps_device", f"{device} {0 if bytes_per_s is None else int(bytes_per_s)}"
        )

    @property
    def killed(self) -> bool:
        """The kernel killed something in here because of our limit."""
        return self.limits.memory_bytes is not None and self._kills() > self.kills_before

    def remove(self) -> list[OSError]:
        """What keeps it; nothing once it is gone. The kernel refuses while a process in it has not ended altogether."""
        kept = []
        for folder in set(self.folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # an earlier call removed it
            except OSError as error:
                kept.append(error)
        return kept

    def _kills(self) -> int:
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        try:
            lines = (self.folders["memory"] / name).read_text().splitlines()
        except OSError:
            return 0
        found = dict(line.split(" ", 1) for line in lines if " " in line)
        return int(found.get("oom_kill", "0"))

    def _distinct(self) -> list[str]:
        seen: dict[Path, str] = {}
        for name, folder in self.folders.items():
            seen.setdefault(folder, name)
        return list(seen.values())

    def _write(self, controller: str, name: str, value: str) -> bool:
        folder = self.folders.get(controller)
        if folder is None:
            return False
        try:
            (folder / name).write_text(value)
        except OSError as error:
            _log.warning("event=cgroup-not-set file=%s value=%r error=%s", folder / name, value, error)
            return False
        return True


def find_groups(marker: str, proc: Path = Path("/proc/self/cgroup"), root: Path = ROOT) -> Groups | None:
    """Where groups for this worker can be made; None: nowhere, or not for memory."""
    mark = hashlib.sha256(marker.encode()).hexdigest()[:8]
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    paths: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path.lstrip("/")
    groups = _v2(root, paths.get("", ""), mark) if "" in paths else None
    if groups is None:
        groups = _v1(root, paths, mark)
    if groups is not None:
        groups.sweep()
    return groups


def _v1(root: Path, paths: Mapping[str, str], mark: str) -> Groups | None:
    above: dict[str, Path] = {}
    for name, controller in _V1.items():
        if controller not in paths:
            continue
        # In a container the path is the host's, and our own group is what is mounted.
        for place in (root / controller / paths[controller], root / controller):
            if (place / "cgroup.procs").is_file() and os.access(place, os.W_OK):
                above[name] = place
                break
    return Groups(1, above, mark) if "memory" in above else None


def _v2(root: Path, path: str, mark: str) -> Groups | None:
    own = root / path
    if own.name == _OURS:
        own = own.parent
    try:
        offered = (own / "cgroup.controllers").read_text().split()
    except OSError:
        return None
    if "memory" not in offered or not _is_ours(own):
        return None
    wanted = [name for name in _CONTROLLERS if name in offered]
    try:
        _move_down(own)
        (own / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
    except OSError as error:
        _log.warning("event=no-cgroups folder=%s error=%s", own, error)
        return None
    return Groups(2, dict.fromkeys(wanted, own), mark)


def _is_ours(folder: Path) -> bool:
    """Whether it was handed to us: what else may lie in a group that is merely writable is nobody's to move."""
    if not os.access(folder / "cgroup.procs", os.W_OK) or not os.access(folder, os.W_OK):
        return False
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return (folder / _OURS).is_dir()


def _move_down(folder: Path) -> None:
    ours = folder / _OURS
    ours.mkdir(exist_ok=True)
    for pid in (folder / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (ours / "cgroup.procs").write_text(pid)
