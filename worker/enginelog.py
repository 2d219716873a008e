"""The log of a model's engines: one file a model, rotated, and its tail for error messages.

Engines write to the file themselves (opened for appending), so that a busy or stopped agent never blocks them. Rotation
copies and truncates for the same reason; the few lines that may fall between are the price.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

LIMIT_BYTES = 16 * 2**20
KEEP = 3
_TAIL_BYTES = 4096
_log = logging.getLogger("rewarm.worker.enginelog")


def open_log(path: Path, heading: str) -> tuple[int, int]:
    """A descriptor for the engine's output and the offset where its part begins, after a line that says whose it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rotate(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(descriptor, f"--- {heading}\n".encode())
    return descriptor, os.fstat(descriptor).st_size


def rotate(path: Path, limit: int = LIMIT_BYTES, keep: int = KEEP) -> bool:
    """Move the content away once it is over ``limit``: ``.1`` is the newest copy. Never raises: a full disk must not
    stop an engine."""
    try:
        if not path.exists() or path.stat().st_size <= limit:
            return False
        for number in range(keep - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.truncate(path, 0)
    except OSError as error:
        _log.warning("event=rotate-failed path=%s error=%s", path, error)
        return False
    return True


def tail(path: Path, since: int) -> str:
    """The last lines that were written after offset ``since``; what there is, if the file was rotated meanwhile."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = since if since <= size else 0
            file.seek(max(start, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
