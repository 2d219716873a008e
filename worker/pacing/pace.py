"""One load's share of full speed, carried out: how fast it may read, how much of the cores it gets, who comes first."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from snapshots import LimitFile
from worker.limits.cgroups import Group
from worker.pacing import priority
from worker.pacing.guard import Pace

PAUSED_CPUS = 0.01
"""Of a core, in a pause: it must still answer its agent, and a signal."""
LEAST_RATE = 2**16
_log = logging.getLogger("rewarm.worker.pacing")


class LoadPace:
    """From the start of an engine until it is ready. ``full``: bytes/s that full speed is taken to be; ``configured``:
    what a load of this model may read in any case; ``disk``: where its weights lie, see :func:`disk_of`."""

    def __init__(
        self,
        replica: str,
        limit_file: Path,
        *,
        full: float,
        configured: float | None = None,
        io_class: str | None = None,
        disk: str | None = None,
    ) -> None:
        self._replica = replica
        self._file: LimitFile | None = LimitFile(limit_file)
        self._full = full
        self._configured = configured
        self._io_class = io_class
        self._disk = disk
        self._group: Group | None = None
        self._stands_back = False
        self.pace = Pace()
        self._file.limit(configured)

    def started(self, group: Group | None, pids: Sequence[int], pace: Pace) -> None:
        self._group = group
        if self._io_class is not None:
            priority.io_class(pids, self._io_class)
        self._carry_out(pace, pids)

    def change(self, pace: Pace, pids: Sequence[int]) -> None:
        if self._file is not None and pace != self.pace:
            self._carry_out(pace, pids)

    def ready(self, pids: Sequence[int]) -> None:
        """From now on it serves like any other."""
        if self._file is None:
            return
        self._configured = None
        self._carry_out(Pace(), pids)
        if self._io_class is not None:
            priority.io_class(pids, None)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _carry_out(self, pace: Pace, pids: Sequence[int]) -> None:
        self.pace = pace
        if pace.reason:
            _log.info("event=pace replica=%s share=%.3f why=%r", self._replica, pace.share, pace.reason)
        rate = self._configured
        if pace.held_back:
            rate = min(rate or float("inf"), pace.share * self._full)
        if self._file is not None:
            self._file.limit(rate)
        if self._group is not None:
            if self._disk is not None:
                self._group.read_at_most(None if rate is None else max(LEAST_RATE, rate), self._disk)
            cores = len(os.sched_getaffinity(0))
            self._group.use_cpus(max(PAUSED_CPUS, pace.share * cores) if pace.held_back else None)
        self._stand_back(pids, back=pace.beside)

    def _stand_back(self, pids: Sequence[int], *, back: bool) -> None:
        if back == self._stands_back:
            return
        self._stands_back = back
        if self._group is not None and self._group.stand_back(back):
            return
        if priority.may_restore():
            priority.stand_back(pids, back=back)


def disk_of(path: Path) -> str | None:
    """``major:minor`` of the whole disk that a file lies on; None for file systems without one (network, memory)."""
    try:
        number = path.stat().st_dev
        entry = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
        if (entry / "partition").exists():  # limits are of whole disks
            entry = entry.parent
        return (entry / "dev").read_text().strip()
    except OSError:
        return None
