"""Memory limits without control groups: look often and cheaply, and where it is too much, look once more and exactly.

What a runaway takes between two looks it has: half a second of a fast allocation is a gigabyte or two. A control group
is better wherever one can be made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from worker.procs import Process, all_processes

LOOK_EVERY_S = 0.5
_PAGE = os.sysconf("SC_PAGE_SIZE")


def exceeds(limit_bytes: int, rough: Callable[[], int], exact: Callable[[], int]) -> bool:
    """``rough`` counts shared memory as often as it is shared, so never too little of what each process has for itself;
    ``exact`` (PSS) reads page tables."""
    return rough() > limit_bytes and exact() > limit_bytes


def anonymous_bytes(leader: int) -> int:
    """Of all processes of the session that ``leader`` leads: resident, without pages of files."""
    return sum(map(_anonymous, _session(all_processes(), leader)))


def _session(processes: Iterable[Process], leader: int) -> list[int]:
    return [process.pid for process in processes if leader in (process.pid, process.session)]


def _anonymous(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
