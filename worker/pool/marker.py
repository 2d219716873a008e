"""A process's entry ``REWARM_REPLICA`` in ``/proc/PID/environ``, which a fork keeps from the exec long before it.

Containment finds what belongs to a replica by that entry, also what left its session and its parent. So whoever starts
a process of the pool leaves room for a name there, and the forked host writes the name over it, where the kernel reads
it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from worker.containment import REPLICA_ENV

_ROOM = 128
PLACEHOLDER = "-" * _ROOM


def mark(replica: str) -> bool:
    """Write ``replica`` into this process's own environment block. False where there is no room for it."""
    name = replica.encode()
    if len(name) > _ROOM:
        return False
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end: 50 and 51 in proc(5), which counts from 1
    block = Path("/proc/self/environ").read_bytes()
    before = f"{REPLICA_ENV}=".encode()
    at = block.find(before + b"-" * _ROOM)
    if start == 0 or at < 0 or start + at + len(before) + _ROOM > end:
        return False
    ctypes.memmove(start + at + len(before), name.ljust(_ROOM, b"\0"), _ROOM)
    return True
