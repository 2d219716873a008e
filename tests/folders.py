"""Folders for weights, which are too large to lie about until the whole run ends, or to be copied for each test."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

_SMALL_BYTES = 2**20


@contextlib.contextmanager
def passing_folder(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """For fixtures of a module or a package: pytest itself removes theirs only when everything has ended."""
    folder = factory.mktemp(name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def linked_copy(source: Path, target: Path) -> Path:
    """``target``, a copy of the folder ``source``, whose large files are the same ones under another name. Who wants to
    change one takes ``unlinked`` first. Small files are copied: some of them are locks, which copies must not share."""
    shutil.copytree(source, target, copy_function=_link_if_large)
    return target


def unlinked(file: Path) -> Path:
    """``file``, now with bytes of its own, and writable."""
    own = file.with_name(f"{file.name}.own")
    shutil.copyfile(file, own)
    own.replace(file)
    return file


def _link_if_large(source: str, target: str) -> str:
    if Path(source).stat().st_size < _SMALL_BYTES:
        return str(shutil.copy2(source, target))
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)
    return target
