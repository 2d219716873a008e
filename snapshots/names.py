"""Which names may stand in a manifest and in the store. Everything that reaches the file system comes through here."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from urllib.parse import quote

_SEGMENT = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._+=@,() -]{0,199}$")
_MODEL = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,95}$")  # as in a configuration
_MAX_DEPTH = 8


def check_file_name(name: str) -> str | None:
    """Why ``name`` is no relative path of plain segments, or None. ``..``, absolute paths and hidden names are none."""
    segments = name.split("/")
    if len(segments) > _MAX_DEPTH:
        return f"{name[:200]!r} is nested more than {_MAX_DEPTH} folders deep"
    for segment in segments:
        if not _SEGMENT.match(segment) or segment.endswith((" ", ".")):
            return f"{name[:200]!r} is not a plain relative file name"
    return None


def check_file_names(names: Iterable[str]) -> str | None:
    """As :func:`check_file_name`, and no name twice, also as a folder of another."""
    seen: set[str] = set()
    folders: set[str] = set()
    for name in names:
        problem = check_file_name(name)
        if problem is not None:
            return problem
        if name in seen:
            return f"{name!r} is there twice"
        seen.add(name)
        parts = name.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    both = seen & folders
    return f"{min(both)!r} is a file and a folder" if both else None


def check_model_name(name: str) -> str | None:
    return None if _MODEL.match(name) else f"{name[:120]!r}: letters, digits and . _ : / - only, at most 96"


def model_folder(model: str) -> str:
    """One folder name for each model name, and no two names share one: the store can be listed without an index."""
    return quote(model, safe="")


def open_inside(folder: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open the regular file ``name`` below the folder descriptor; raise OSError for a symlink anywhere on the way.

    Names are checked before, so that this is the second lock on the door: what lies in the folder may have been changed
    since by somebody else.
    """
    *folders, last = name.split("/")
    at = folder
    try:
        for part in folders:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            if at != folder:
                os.close(at)
            at = below
        descriptor = os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=at)
    finally:
        if at != folder:
            os.close(at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a fifo or a device; O_NONBLOCK kept the open from hanging
        os.close(descriptor)
        raise OSError(22, "is not a regular file", name)
    return descriptor
