"""A folder appears whole or not at all: written aside, synced, described by a manifest, renamed into place.

Complete means that the manifest matches what lies there, never that the folder exists: a crash, a full disk or a killed
process leaves at most a folder in ``.tmp-…``, which the next attempt removes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapshots.errors import PrepareFailed

MANIFEST_FILE = "rewarm-manifest.json"
MANIFEST_VERSION = 1

_CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Step:
    """How far a preparation is: ``fraction`` 0..1, never going back; ``message`` for a person."""

    fraction: float
    message: str


Report = Callable[[Step], None]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("version") == MANIFEST_VERSION else None


def is_complete(folder: Path, source: Mapping[str, Any] | None = None, *, digests: bool = False) -> bool:
    """Whether every file of the manifest lies there with its size (with ``digests``, its bytes too), made from
    ``source``."""
    manifest = read_manifest(folder)
    if manifest is None or not isinstance(manifest.get("files"), dict) or not manifest["files"]:
        return False
    if source is not None and manifest.get("source") != dict(source):
        return False
    for name, entry in manifest["files"].items():
        path = folder / name
        try:
            if path.stat().st_size != entry["bytes"] or (digests and sha256(path) != entry["sha256"]):
                return False
        except (OSError, KeyError, TypeError):
            return False
    return True


def publish(target: Path, source: Mapping[str, Any], build: Callable[[Path], None]) -> bool:
    """Let ``build`` fill an empty folder, then make that folder ``target``. On an error nothing of it stays.

    Return False without building when ``target`` is complete and made from ``source``, also when another process was
    just making it: preparations in one parent folder take turns. Raise PrepareFailed rather than replace a folder that
    holds something else.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent):
        if is_complete(target, source):
            return False
        if target.is_symlink() or (target.exists() and not _replaceable(target)):
            raise PrepareFailed(
                f"{target} exists and was not made by rewarm: name another folder, or remove it yourself"
            )
        temporary = target.parent / f".tmp-{target.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            build(temporary)
            _seal(temporary, source)
            _replace(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return True


def _replaceable(target: Path) -> bool:
    return target.is_dir() and ((target / MANIFEST_FILE).is_file() or not any(target.iterdir()))


def _seal(folder: Path, source: Mapping[str, Any]) -> None:
    files: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)  # safetensors writes 0600: engines may run as another user
        _sync(path)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    manifest = {"version": MANIFEST_VERSION, "source": dict(source), "files": files}
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    _sync(path)
    _sync(folder)


def _replace(temporary: Path, target: Path) -> None:
    """Rename into place. An incomplete or older folder of ours goes aside first, then away."""
    old = target.parent / f".old-{target.name}"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    temporary.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The lock is on the folder itself: a lock file could not be removed without a race."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
