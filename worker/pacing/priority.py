"""Scheduling of an engine's processes from outside: nice, and the class of their reads.

Nice only where it can be taken back: who may not raise a priority may lower it once, and an engine that stays slow
after its load would be worse than one that loads fast. Most desktops schedule sessions against each other as groups
(autogroup), so that group's nice is set as well.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable
from pathlib import Path

from snapshots import last_io, set_io_class

NICE = 6
"""About a quarter of the usual weight, as of a control group that stands back."""

BEHIND_NICE = 10
"""About a tenth of the usual weight: on a core that engines never leave it costs them less than the guard allows. At 19
it would be a seventieth, and what works behind busy engines would hardly ever come to its end."""


def may_restore() -> bool:
    """Whether this user may raise a priority again."""
    return os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20


def stand_back(pids: Iterable[int], *, back: bool) -> None:
    """All threads of the processes, and what these start from now on."""
    value = NICE if back else 0
    for pid in pids:
        for task in _tasks(pid):
            with contextlib.suppress(OSError):
                if back or os.getpriority(os.PRIO_PROCESS, task) == NICE:  # what works behind it stays there
                    os.setpriority(os.PRIO_PROCESS, task, value)
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(str(value))


def work_behind() -> None:
    """This process from now on: for the making of a snapshot while the engine serves. It always gets on."""
    os.setpriority(os.PRIO_PROCESS, 0, max(BEHIND_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    last_io()


def io_class(pids: Iterable[int], name: str | None) -> None:
    """``idle`` or ``best-effort``; None: as their nice value says."""
    for pid in pids:
        for task in _tasks(pid):
            set_io_class(task, name)


def _tasks(pid: int) -> list[int]:
    try:
        return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
