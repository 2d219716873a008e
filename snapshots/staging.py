"""A snapshot in the making: a folder in ``staging/`` that nobody sees, until it appears whole under its name.

The order is what makes it whole: every file synced, the manifest written and synced last, the folder synced, renamed,
its new parent synced. A process that is killed on the way leaves a folder whose lock is gone; :meth:`Store.collect`
removes it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from snapshots.digests import CHUNK_BYTES, Buffer, ChunkHasher
from snapshots.durable import full_disk_is_typed, remove_tree, reserve, sync, unlock
from snapshots.manifest import MANIFEST_NAME, File, FileKind, Manifest, encode
from snapshots.names import check_file_names


class StagedFile:
    """Written from its first byte to its last, digested on the way."""

    def __init__(self, path: Path, name: str, kind: FileKind, descriptor: int, size: int, chunk_bytes: int) -> None:
        self._path, self._name, self._kind = path, name, kind
        self._descriptor, self._size = descriptor, size
        self._hasher = ChunkHasher(chunk_bytes)
        self._at = 0

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        if self._at + len(view) > self._size:
            raise ValueError(f"{self._name}: more than the {self._size} bytes that were announced")
        self._hasher.update(view)
        with full_disk_is_typed(self._path):
            while len(view):
                written = os.pwrite(self._descriptor, view, self._at)
                self._at += written
                view = view[written:]

    def finish(self) -> File:
        """Sync, and say what the manifest has to."""
        if self._at != self._size:
            raise ValueError(f"{self._name}: {self._at} of {self._size} bytes were written")
        with full_disk_is_typed(self._path):
            os.fchmod(self._descriptor, 0o444)  # engines may run as another user, and nobody writes to it any more
            os.fsync(self._descriptor)
        self.close()
        chunks, content = self._hasher.finish()
        return File(self._name, self._kind, self._size, content, chunks.hex())

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Staging:
    """Made by :meth:`Store.begin`. Leaving the context without :meth:`publish` removes everything."""

    def __init__(
        self,
        folder: Path,
        descriptors: tuple[int, ...],
        sizes: Mapping[str, int],
        publish: Callable[[Staging, Manifest], Path],
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.folder = folder
        self.chunk_bytes = chunk_bytes
        self._descriptors = (
            descriptors  # their locks: on the folder (it is in use), on the model's (one capture at once)
        )
        self._sizes = dict(sizes)
        self._publish = publish
        self._files: dict[str, StagedFile] = {}
        self._done = False

    def reserve(self) -> None:
        """Create every announced file with its space. Raise OSError when the disk is full; nothing was written
        then."""
        problem = check_file_names(self._sizes)
        if problem is not None:
            raise ValueError(problem)
        self._create(self._sizes)

    def extend(self, sizes: Mapping[str, int]) -> None:
        """More files, whose sizes were not known at the beginning; called by :meth:`Store.extend`."""
        problem = check_file_names([*self._sizes, *sizes])
        if problem is not None:
            raise ValueError(problem)
        self._create(sizes)
        self._sizes |= sizes

    def _create(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                reserve(descriptor, size)
            finally:
                os.close(descriptor)

    def file(self, name: str, kind: FileKind) -> StagedFile:
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        file = StagedFile(self.folder / name, name, kind, descriptor, self._sizes[name], self.chunk_bytes)
        self._files[name] = file
        return file

    def mapped(self, name: str) -> mmap.mmap:
        """A file's memory, shared with the disk: for who fills it out of order. :meth:`digested` then."""
        descriptor = os.open(self.folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return mmap.mmap(descriptor, self._sizes[name], mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(descriptor)  # the map keeps its own

    def digested(self, name: str, kind: FileKind, data: Buffer) -> File:
        """Sync a file that was filled through its memory, ``data``, and say what the manifest has to."""
        path = self.folder / name
        with full_disk_is_typed(path):
            path.chmod(0o444)
            sync(path)
        hasher = ChunkHasher(self.chunk_bytes)
        view = memoryview(data)
        for at in range(0, len(view), self.chunk_bytes):
            hasher.update(view[at : at + self.chunk_bytes])
        chunks, content = hasher.finish()
        return File(name, kind, self._sizes[name], content, chunks.hex())

    def sync_files(self) -> None:
        """Of a folder that was filled in another way than through :meth:`file`."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                path.chmod(0o444)
                sync(path)

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest, last of all, and sync everything that is not synced yet."""
        path = self.folder / MANIFEST_NAME
        path.unlink(missing_ok=True)  # of an earlier attempt to publish the same folder
        with full_disk_is_typed(path):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                view = memoryview(encode(manifest))
                while len(view):
                    view = view[os.write(descriptor, view) :]
                os.fchmod(descriptor, 0o444)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            for folder, _, _ in os.walk(self.folder, topdown=False):
                sync(Path(folder))

    def publish(self, manifest: Manifest) -> Path:
        """Make it visible, and return its folder. Raise SnapshotExists when the same content is there already."""
        self.seal(manifest)
        target = self._publish(self, manifest)
        self._finish()
        return target

    def abort(self) -> None:
        if not self._done:
            remove_tree(self.folder)
            self._finish()

    def release(self) -> None:
        """Let go of locks and descriptors; the folder stays."""
        if not self._done:
            self._finish()

    def _finish(self) -> None:
        self._done = True
        for file in self._files.values():
            file.close()
        for descriptor in self._descriptors:
            unlock(descriptor)
            os.close(descriptor)

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.abort()
