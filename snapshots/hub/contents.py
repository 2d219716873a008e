"""What a repository of a hub holds at a commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snapshots.sources.base import RemoteFile


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    size: int
    digest: str  # SHA-256 of large files, else git's SHA-1 of a blob: the name that it has in the cache


@dataclass(frozen=True, slots=True)
class HubListing:
    commit: str
    files: tuple[HubFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)


def remote(file: HubFile) -> RemoteFile:
    """Without a version: the address names the commit, and every file's digest is compared when it is here."""
    return RemoteFile(file.name, file.size)


def read_file(entry: Any) -> HubFile:
    """From an entry of the hub's answer. Raise LookupError, TypeError, ValueError for what is none."""
    large = entry.get("lfs") or {}
    return HubFile(str(entry["rfilename"]), int(large.get("size") or entry["size"]), _digest(entry, large))


def _digest(entry: Any, large: Any) -> str:
    digest = str(large.get("sha256") or large.get("oid") or entry["blobId"]).removeprefix("sha256:")
    if not digest.isalnum():
        raise ValueError(digest)
    return digest
