"""Out of sight first, removed later: how folders leave the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from snapshots import durable
from snapshots.folders import Folders


@dataclass(frozen=True, slots=True)
class Collected:
    """``in_use`` folders were evicted, and wait for their last reader."""

    removed: int
    freed_bytes: int
    in_use: int


class Trash:
    """A rename takes a snapshot from new readers in one step; those that have a lease go on until they are done."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def put(self, folder: Path) -> Path:
        """The caller holds the store's lock."""
        gone = self._folders.fresh(self._folders.trash)
        folder.rename(gone)
        durable.sync(folder.parent)
        return gone

    def remove(self, gone: Path) -> bool:
        """Remove one if nobody reads it. The caller holds the store's lock."""
        if not durable.nobody_uses(gone):
            return False
        durable.remove_tree(gone)
        return True

    def empty(self) -> Collected:
        """Remove what no lease holds. Takes the store's lock itself, and not for the removal: that may take seconds.

        No new lease can come for what lies here: a reader looks whether the snapshot's name still leads to its folder.
        """
        unused, in_use = [], 0
        with durable.locked(self._folders.lock):
            for folder in below(self._folders.trash):
                if durable.nobody_uses(folder):
                    unused.append(folder)
                else:
                    in_use += 1
        freed = 0
        for folder in unused:
            freed += durable.tree_bytes(folder)
            durable.remove_tree(folder)
        return Collected(len(unused), freed, in_use)


def below(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
