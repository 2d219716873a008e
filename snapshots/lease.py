"""The right to read one snapshot, tied to this process: while it is held, the bytes stay where they are.

A lease is a shared ``flock`` on the snapshot's folder. The kernel drops it when the process ends, however it ends, so
there is nothing to reap and no heartbeat to miss. Eviction renames the folder away first, and removes it only once it
gets the lock for itself; the holder of a lease reads on through its descriptor, which a rename does not touch.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from snapshots.durable import open_folder, unlock
from snapshots.errors import SnapshotNotFound
from snapshots.manifest import Manifest
from snapshots.reading import check_complete, read_manifest


class Lease:
    """Also a context manager. A child made by ``fork`` has to take its own: the parent's ends with the parent's
    close."""

    def __init__(self, folder: Path, descriptor: int, manifest: Manifest, on_close: Callable[[], None]) -> None:
        self.folder = folder  # its name when the lease was taken: for messages
        self.descriptor = descriptor
        self.manifest = manifest
        self._on_close = on_close
        self._closed = False
        self._owner = os.getpid()

    @property
    def snapshot_id(self) -> str:
        return self.manifest.snapshot_id

    @property
    def path(self) -> Path:
        """A path that leads to the folder even after it was evicted, for tools that want one. Only while it is
        held."""
        return Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")

    @property
    def evicted(self) -> bool:
        """Whether the store has let go of the snapshot: no new reader gets it."""
        return not is_same_folder(self.descriptor, self.folder)

    def let_go(self) -> None:
        """For a process that reads nothing, and is only forked from: the snapshot may be evicted. What it has mapped it
        keeps; its forks :meth:`retake`."""
        unlock(self.descriptor)

    def retake(self) -> None:
        """In a fork: the right to read, of its own. Raise SnapshotNotFound when the snapshot was evicted meanwhile."""
        try:
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.descriptor)
        except FileNotFoundError as error:
            raise SnapshotNotFound(f"{self.folder} was evicted and removed since it was mapped") from error
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.close(self.descriptor)
        self.descriptor, self._owner = descriptor, os.getpid()
        if self.evicted:
            raise SnapshotNotFound(f"{self.folder} was evicted since it was mapped")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        evicted, mine = self.evicted, os.getpid() == self._owner
        if mine:  # in a forked child the lock is still its parent's
            unlock(self.descriptor)
        os.close(self.descriptor)
        if evicted and mine:
            self._on_close()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def take(folder: Path, on_close: Callable[[], None] = lambda: None) -> Lease:
    """Lease the snapshot in ``folder``. Raise SnapshotNotFound when it is evicted just now, CheckpointError if
    broken."""
    try:
        descriptor = open_folder(folder)
    except OSError as error:
        raise SnapshotNotFound(f"{folder}: {error.strerror or error}") from error
    try:
        # The exclusive lock is held for instants only, by who asks whether anybody is left: waiting is right.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not is_same_folder(descriptor, folder):
            unlock(descriptor)
            on_close()  # who evicted it may have met our lock, and left the removal to us
            raise SnapshotNotFound(f"{folder} was evicted just now")
        manifest = read_manifest(descriptor, folder)
        check_complete(descriptor, manifest, folder)
    except BaseException:
        os.close(descriptor)
        raise
    return Lease(folder, descriptor, manifest, on_close)


def is_same_folder(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.lstat())
    except FileNotFoundError:
        return False
