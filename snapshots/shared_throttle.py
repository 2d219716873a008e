"""A bandwidth limit that another process sets while it is in force: one number in a mapped file.

Who owns the limit makes the file and writes; every reader of weights in every process of an engine maps it and looks
before each piece. A reader without the file reads as fast as it can.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from pathlib import Path

from snapshots.throttle import Throttle

THROTTLE_ENV = "REWARM_THROTTLE"
"""Where processes of an engine find the file."""

_NUMBER = struct.Struct("=d")  # bytes a second; infinity: no limit; 0: paused
_PAUSED = 1e-6
"""Bytes a second: what is asked for then is due after the pause."""


class LimitFile:
    """The writer's side. Made anew: what an earlier one of the name left is replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _NUMBER.size)
            self._map = mmap.mmap(descriptor, _NUMBER.size)
        finally:
            os.close(descriptor)
        self.limit(None)

    def limit(self, bytes_per_s: float | None) -> None:
        """None lifts it, 0 pauses."""
        _NUMBER.pack_into(self._map, 0, math.inf if bytes_per_s is None else max(0.0, bytes_per_s))

    def close(self) -> None:
        self._map.close()
        self._path.unlink(missing_ok=True)


class SharedThrottle(Throttle):
    """The reader's side, for threads of one process. Raise OSError or ValueError where there is no such file."""

    _look_every_s = 0.05

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBER.size, access=mmap.ACCESS_READ)
        super().__init__()

    def _look(self) -> None:
        (limit,) = _NUMBER.unpack_from(self._map, 0)
        wanted = None if math.isinf(limit) else max(_PAUSED, float(limit))
        if wanted != self.bytes_per_s:
            self.limit(wanted)


def throttle_from_env() -> Throttle | None:
    """The limit that whoever started this engine keeps for it; None where nobody does."""
    path = os.environ.get(THROTTLE_ENV)
    if not path:
        return None
    try:
        return SharedThrottle(Path(path))
    except (OSError, ValueError):
        return None
