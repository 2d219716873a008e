"""A published snapshot's folder, opened by descriptor: from then on it may be renamed, and still is the same folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from snapshots.errors import FileChanged, ManifestInvalid, WeightsCorrupt, WeightsMissing
from snapshots.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, File, Manifest, parse
from snapshots.names import open_inside


def read_manifest(folder: int, path: Path) -> Manifest:
    """Raise WeightsMissing without a manifest, ManifestInvalid (or ManifestVersion) for one that cannot be taken.

    ``path`` is the folder's name, for errors.
    """
    name = path / MANIFEST_NAME
    try:
        descriptor = open_inside(folder, MANIFEST_NAME)
    except FileNotFoundError as error:
        raise WeightsMissing(name, "is not there: no snapshot, or one that is not complete") from error
    except OSError as error:
        raise ManifestInvalid(name, error.strerror or str(error)) from error
    try:
        size = os.fstat(descriptor).st_size
        if size > MAX_MANIFEST_BYTES:
            raise ManifestInvalid(name, f"has {size} bytes: no manifest")
        raw = b""
        while len(raw) < size and (piece := os.pread(descriptor, size - len(raw), len(raw))):
            raw += piece
    except OSError as error:
        raise WeightsMissing(name, error.strerror or str(error)) from error
    finally:
        os.close(descriptor)
    return parse(raw, name)


def check_complete(folder: int, manifest: Manifest, path: Path) -> None:
    """Whether exactly the manifest's files lie there, each with its size. Bytes are compared by whoever reads them.

    A file too many is refused as well: stock loaders take every ``*.safetensors`` they find.
    """
    for file in manifest.files:
        os.close(open_file(folder, file, path))
    named = {file.name for file in manifest.files} | {MANIFEST_NAME}
    for name in _walk(folder):
        if name not in named:
            raise ManifestInvalid(path / name, "lies in the snapshot, and its manifest does not name it")


def open_file(folder: int, file: File, path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a file whose size is the manifest's; raise WeightsMissing or WeightsCorrupt."""
    name = path / file.name
    try:
        descriptor = open_inside(folder, file.name, flags)
    except FileNotFoundError as error:
        raise WeightsMissing(name, "is missing; the manifest names it") from error
    except OSError as error:
        if flags != os.O_RDONLY:
            raise  # the caller asked for O_DIRECT, and has another way
        raise WeightsCorrupt(name, f"cannot be opened: {error.strerror or error}") from error
    size = os.fstat(descriptor).st_size
    if size != file.size:
        os.close(descriptor)
        problem = f"has {size} bytes, the manifest says {file.size}"
        raise WeightsCorrupt(name, problem, offset=min(size, file.size))
    return descriptor


class Unchanged:
    """Notices that an open file was written to, cut or replaced between two looks at it."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path = descriptor, path
        self._seen = self._look()

    def check(self) -> None:
        if self._look() != self._seen:
            raise FileChanged(self._path, "changed while it was read")

    def _look(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns


def _walk(folder: int, prefix: str = "") -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            yield prefix + name
            continue
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            yield from _walk(below, f"{prefix}{name}/")
        finally:
            os.close(below)
