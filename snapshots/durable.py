"""What a crash must not tear: syncing, reserving space, writing small files, and the locks that die with their
process."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snapshots.errors import StoreFull

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def sync(path: Path) -> None:
    """``fsync`` a file or folder by its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve(descriptor: int, size: int) -> None:
    """Make ``size`` bytes of the file sure. Raise OSError (see :func:`is_full`) when the disk has not so many
    left."""
    if size == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size)  # a file system that cannot promise: a full disk is met while writing


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


@contextmanager
def full_disk_is_typed(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise StoreFull(f"{path}: {error.strerror or error}") from error
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Replace a small file at once: readers see the old bytes or the new ones. Survives a crash of the process; a
    crash of the machine may bring back the old ones."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_tree(path: Path) -> None:
    """Also when somebody else is removing it at the same time."""
    shutil.rmtree(path, ignore_errors=True)


def tree_bytes(path: Path) -> int:
    """What the files below occupy on the disk, as blocks: what removing them frees."""
    total = 0
    stack = [path]
    while stack:
        try:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue  # went away while we counted
    return total


def free_bytes(path: Path) -> int:
    """What the disk has left for us; root's reserve is not."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def open_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """``flock`` without waiting. The kernel lets go of it when the process dies, however it dies."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Explicitly, because a forked child shares the lock: closing our descriptor alone would leave it with the
    child."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the exclusive lock on an existing file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """The same lock, if nobody has it; whether it is ours."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield try_lock(descriptor)
    finally:
        unlock(descriptor)
        os.close(descriptor)


def nobody_uses(path: Path) -> bool:
    """Whether no process holds a lock on the folder: no reader, no writer. Held itself only for this instant."""
    try:
        descriptor = open_folder(path)
    except FileNotFoundError:
        return True
    try:
        return try_lock(descriptor)
    finally:
        os.close(descriptor)
