"""The memory of one device: what may be used, what is promised to whom, and whether one more replica fits.

The ledger is pure. It knows three numbers: the *budget* (of RAM 80 % of the machine or of the cgroup, or as
configured), what this agent has *promised* to its replicas, and what is *available* now by the kernel's or the driver's
own account, less what has been promised (by any agent of this machine) and not been touched yet. A replica fits when
both the budget and the device have room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rewarm.states import FailureReason
from rewarm.units import format_bytes
from worker.oom import memory_cgroup

BUDGET_SHARE = 0.8
_NO_LIMIT = 2**60  # cgroup v1 writes "no limit" as a number of pages near 2**63


@dataclass(frozen=True, slots=True)
class Machine:
    """What a device has. Of RAM, the smaller of the machine's and the cgroup's."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory promised to one replica, and how much of it the replica's processes already have (PSS)."""

    need_bytes: int
    used_bytes: int = 0
    lent_bytes: int = 0  # beyond them, for its wake from sleep: given to others when they need it

    @property
    def untouched_bytes(self) -> int:
        return max(0, self.need_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` None: it fits. Otherwise NEVER_FITS or NO_ROOM, with the arithmetic in ``message``."""

    reason: FailureReason | None = None
    message: str = ""

    @property
    def fits(self) -> bool:
        return self.reason is None


@dataclass(slots=True)
class MemoryLedger:
    budget_bytes: int
    holdings: dict[str, Holding] = field(default_factory=dict)
    spares: dict[str, Holding] = field(default_factory=dict)
    """Of each pool, by its kind of engine: in use, and given back when an engine would not fit otherwise. So it counts
    as free for placement."""
    label: str = "RAM"
    """Of the device, for people."""

    @property
    def promised_bytes(self) -> int:
        """Without what is kept for wakes."""
        return sum(max(h.need_bytes, h.used_bytes) for h in self.holdings.values())

    @property
    def spare(self) -> Holding:
        """All pools together."""
        spares = self.spares.values()
        return Holding(sum(one.need_bytes for one in spares), sum(one.used_bytes for one in spares))

    def free_bytes(self, machine: Machine) -> int:
        """What a new replica could have now: for the heartbeat, which placement reads. What is kept for wakes counts
        as free: those that sleep give it up."""
        untouched = sum(h.untouched_bytes for h in self.holdings.values())
        available = machine.available_bytes + self.spare.used_bytes
        return max(0, min(self.budget_bytes - self.promised_bytes, available - untouched))

    def admit(self, need: int, arithmetic: str, machine: Machine, others: Iterable[Holding] = ()) -> Verdict:
        """May a replica that needs ``need`` bytes start? ``others`` are promises of other agents of this machine."""
        asks = f"needs {arithmetic or format_bytes(need)}"
        if need > self.budget_bytes:
            return Verdict(
                FailureReason.NEVER_FITS,
                f"{asks}; this worker's whole budget of {self.label} is {format_bytes(self.budget_bytes)}",
            )
        spare = max(self.spare.need_bytes, self.spare.used_bytes)
        lent = sum(h.lent_bytes for h in self.holdings.values())
        left = self.budget_bytes - self.promised_bytes - spare - lent
        if need > left:
            held = ", ".join(f"{name} {format_bytes(h.need_bytes)}" for name, h in self.holdings.items())
            held += f"{', ' if held else ''}{format_bytes(lent)} for wakes" if lent else ""
            held += f"{', ' if held else ''}the pool {format_bytes(spare)}" if spare else ""
            return Verdict(
                FailureReason.NO_ROOM,
                f"{asks}; of the budget of {format_bytes(self.budget_bytes)} of {self.label} only "
                f"{format_bytes(max(0, left))} is left ({held} is promised)",
            )
        untouched = lent + sum(h.untouched_bytes for h in (*self.holdings.values(), *others, self.spare))
        room = machine.available_bytes - untouched
        if need > room:
            return Verdict(
                FailureReason.NO_ROOM,
                f"{asks}; {self.label} has {format_bytes(machine.available_bytes)} available, of which "
                f"{format_bytes(untouched)} is promised and not used yet: others use the rest of its "
                f"{format_bytes(machine.total_bytes)}",
            )
        return Verdict()


def read_machine() -> Machine:
    """From /proc/meminfo and the memory cgroup (v2 or v1), whose reclaimable page cache counts as available."""
    info = _meminfo()
    total, available = info["MemTotal"], info.get("MemAvailable", info.get("MemFree", 0))
    limit, used = _cgroup(memory_cgroup())
    if limit is not None:
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return Machine(total, available)


def _meminfo() -> Mapping[str, int]:
    out: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        number = value.split()
        if number:
            out[name] = int(number[0]) * 1024
    return out


def _cgroup(group: Path | None) -> tuple[int | None, int]:
    """(limit or None, bytes in use without inactive file pages)."""
    if group is None:
        return None, 0
    limit = _number(group / "memory.max")
    used = _number(group / "memory.current")
    if limit is None and used is None:
        limit, used = _number(group / "memory.limit_in_bytes"), _number(group / "memory.usage_in_bytes")
    if limit is None or limit >= _NO_LIMIT:
        return None, 0
    return limit, max(0, (used or 0) - _inactive_file(group))


def _inactive_file(group: Path) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split() for line in lines if len(line.split()) == 2)
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
