"""An engine's compile cache as one file of a snapshot: what it was made by, sealed with the store's own secret.

Such a cache is code: compilers and engines load pickles and shared libraries from it without looking. A digest only
proves that it is what was captured, not by whom, and a snapshot may come from another machine. So a cache counts only
in the store where it was captured: its seal is a keyed one, and the key, readable by the store's owner alone, never
leaves it. This module itself reads names and bytes, and unpickles nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from snapshots.errors import SnapshotError
from snapshots.extras import ENGINE_CACHE_NAME
from snapshots.lease import Lease
from snapshots.names import check_file_name
from snapshots.restore import read_extra
from snapshots.store import Store

MAX_CACHE_BYTES = 512 * 2**20
KEY_FILE = "engine-cache.key"

_KEY_BYTES = 32
_VERSION = 1
_LEFT_OUT = (".lock", ".tmp")


class EngineCacheRefused(SnapshotError):
    """A compile cache that is not used, or not kept. The message says why."""

    code = "engine_cache_refused"
    advice = "Nothing has to be done: the engine compiles again."


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    made: dict[str, str]


def has_engine_cache(lease: Lease) -> bool:
    return any(file.name == ENGINE_CACHE_NAME for file in lease.manifest.files)


def pack_engine_cache(folder: Path, made: Mapping[str, str], store: Store) -> bytes:
    """The files below ``folder`` as one. ``made``: what has to be the same for whoever uses them.

    Raise EngineCacheRefused when there is nothing, too much, or no key can be had.
    """
    out = io.BytesIO()
    count = 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_symlink() or not path.is_file() or name.endswith(_LEFT_OUT) or check_file_name(name) is not None:
                continue
            data = path.read_bytes()
            if out.tell() + len(data) > MAX_CACHE_BYTES:
                raise EngineCacheRefused(f"{folder} holds more than {MAX_CACHE_BYTES} bytes")
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
            count += 1
    if not count:
        raise EngineCacheRefused(f"{folder} holds nothing")
    body = msgspec.json.encode(_Head(_VERSION, dict(made))) + b"\n" + out.getvalue()
    key = _key(store, make=True)
    if key is None:
        raise EngineCacheRefused(f"{store.root / KEY_FILE} cannot be used")
    return _seal(key, body) + b"\n" + body


def unpack_engine_cache(lease: Lease, made: Mapping[str, str], store: Store, folder: Path) -> int:
    """Write the cache of a snapshot below the empty ``folder``, and return how many bytes it has.

    Raise EngineCacheRefused when it was not sealed in this store, or made by something else than ``made``;
    DigestMismatch when the disk changed it. ``folder`` is as it was then.
    """
    seal, _, body = read_extra(lease, ENGINE_CACHE_NAME).partition(b"\n")
    key = _key(store, make=False)
    if key is None or not hmac.compare_digest(seal, _seal(key, body)):
        raise EngineCacheRefused(f"{lease.snapshot_id}: its compile cache was not made in this store")
    raw, _, archive = body.partition(b"\n")
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except msgspec.MsgspecError as error:
        raise EngineCacheRefused(f"{lease.snapshot_id}: its compile cache is of another version: {error}") from error
    if head.version != _VERSION or head.made != dict(made):
        other = sorted(name for name in head.made.keys() | made.keys() if head.made.get(name) != made.get(name))
        words = "; ".join(f"{name} was {head.made.get(name)}, is {made.get(name)}" for name in other)
        raise EngineCacheRefused(f"{lease.snapshot_id}: its compile cache was made by others: {words}")
    total = 0
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for entry in tar:
            if not entry.isreg() or check_file_name(entry.name) is not None:
                raise EngineCacheRefused(f"{lease.snapshot_id}: its compile cache holds {entry.name[:80]!r}")
            source = tar.extractfile(entry)
            assert source is not None
            path = folder / entry.name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as out:
                total += out.write(source.read())
    return total


def _seal(key: bytes, body: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).hexdigest().encode()


def _key(store: Store, *, make: bool) -> bytes | None:
    """None where there is none, or it is not ours alone."""
    path = store.root / KEY_FILE
    if make and not path.exists() and not store.read_only:
        temporary = store.root / f".{KEY_FILE}.{os.getpid()}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, os.urandom(_KEY_BYTES))
            os.fsync(descriptor)
            os.link(temporary, path)  # not replaced: another process may just have sealed with its own
        except FileExistsError:
            pass
        finally:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if status.st_mode & 0o077 or status.st_uid not in (os.getuid(), 0):
            return None
        key = os.read(descriptor, _KEY_BYTES + 1)
        return key if len(key) == _KEY_BYTES else None
    finally:
        os.close(descriptor)
