"""One replica's limits at the edge: a control group around its processes, else a watch and an affinity."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from worker.containment import memory_of
from worker.limits.cgroups import Group, Groups
from worker.limits.sizes import Limits, cores_for
from worker.limits.watchdog import anonymous_bytes, exceeds

_REMOVE_WITHIN_S = 3.0
_log = logging.getLogger("rewarm.worker.limits")

Pinned = dict[str, frozenset[int]]
"""Replica → the cores that it is held to, where there is no quota."""


class Confinement:
    def __init__(self, groups: Groups | None, replica: str, limits: Limits, pinned: Pinned) -> None:
        self._replica = replica
        self._limits = limits
        self._pinned = pinned
        self.group: Group | None = None if groups is None else groups.make(replica, limits)

    def take(self, leader: int) -> None:
        """``leader`` has just been started: what it starts is held to the same."""
        if self.group is not None and not self.group.add(leader):
            self.group.remove()
            self.group = None
        if self._limits.cpus is not None and (self.group is None or "cpu" not in self.group.folders):
            self._pin(leader, self._limits.cpus)
        how = "none" if self.group is None else f"cgroup v{self.group.version}"
        _log.info(
            "event=confined replica=%s by=%s memory=%s cpus=%s",
            *(self._replica, how, self._limits.memory_bytes, self._limits.cpus),
        )

    @property
    def watched(self) -> bool:
        """Nobody but us ends it at its limit."""
        return self.group is None and self._limits.memory_bytes is not None

    async def over_limit(self, markers: Sequence[str], leader: int) -> bool:
        limit = self._limits.memory_bytes
        if limit is None:
            return False
        return await asyncio.to_thread(
            exceeds, limit, lambda: anonymous_bytes(leader), lambda: memory_of(markers, leader)
        )

    @property
    def killed(self) -> bool:
        """By the kernel, for its limit."""
        return self.group is not None and self.group.killed

    @property
    def words(self) -> str:
        return self._limits.memory_words

    async def release(self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Nothing of it is left. What was killed is a zombie as soon as its first thread is, and its other threads keep
        the group until they have ended as well: so it is tried again, for seconds."""
        self._pinned.pop(self._replica, None)
        if self.group is None:
            return
        left_s, pause_s = _REMOVE_WITHIN_S, 0.005
        while kept := self.group.remove():
            if left_s <= 0:  # the worker's next agent sweeps it
                _log.warning("event=cgroup-stays replica=%s error=%s", self._replica, kept[0])
                return
            await pause(pause_s)
            left_s, pause_s = left_s - pause_s, min(0.1, pause_s * 2)

    def _pin(self, leader: int, cpus: float) -> None:
        cores = cores_for(cpus, os.sched_getaffinity(0), self._pinned.values())
        self._pinned[self._replica] = cores
        for task in _tasks(leader):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(task, cores)


def _tasks(pid: int) -> list[int]:
    try:
        return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
