"""What the store remembers about a snapshot beside it: priority, pin, why it is in quarantine, when it was used last.

A snapshot's own folder never changes once it is published. Losing this state loses no weights: the defaults apply.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from snapshots.durable import write_whole


class Quarantine(msgspec.Struct, frozen=True):
    kind: str  # "digest", "canary", "operator"
    reason: str
    at: float


class State(msgspec.Struct, frozen=True):
    priority: int = 0
    pinned: bool = False
    quarantine: Quarantine | None = None


class Hits(msgspec.Struct, frozen=True):
    """How often a snapshot that was asked for lay in the store."""

    hits: int = 0
    misses: int = 0

    @property
    def rate(self) -> float | None:
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


class StateFiles:
    """``<root>/state/<model folder>/<version>.json``, and an empty ``….used`` whose time is the last use.

    The caller holds the store's lock for everything that writes, except :meth:`touch`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root / "state"
        self._hits = root / "hits.json"

    def read(self, folder: str, version: str) -> State:
        try:
            return msgspec.json.decode((self._root / folder / f"{version}.json").read_bytes(), type=State)
        except (OSError, msgspec.MsgspecError):
            return State()

    def write(self, folder: str, version: str, state: State) -> None:
        self._write(self._root / folder / f"{version}.json", msgspec.json.encode(state))

    def last_used(self, folder: str, version: str) -> float:
        """Seconds since the epoch; 0 when it was never used."""
        try:
            return (self._root / folder / f"{version}.used").stat().st_mtime
        except OSError:
            return 0.0

    def touch(self, folder: str, version: str, now: float) -> None:
        path = self._root / folder / f"{version}.used"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (now, now))

    def hits(self) -> Hits:
        try:
            return msgspec.json.decode(self._hits.read_bytes(), type=Hits)
        except (OSError, msgspec.MsgspecError):
            return Hits()

    def count(self, *, hit: bool) -> None:
        hits = self.hits()
        self._write(self._hits, msgspec.json.encode(Hits(hits.hits + hit, hits.misses + (not hit))))

    def forget(self, folder: str, version: str) -> None:
        for suffix in (".json", ".used"):
            (self._root / folder / f"{version}{suffix}").unlink(missing_ok=True)

    def prune(self, is_there: Callable[[str, str], bool]) -> None:
        """Remove what no snapshot owns, and what a killed writer left."""
        if not self._root.is_dir():
            return
        for model in self._root.iterdir():
            for path in model.iterdir():
                if path.name.startswith(".") or not is_there(model.name, path.stem):
                    path.unlink(missing_ok=True)
            try:
                model.rmdir()
            except OSError:
                pass  # others of this model are still there

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
