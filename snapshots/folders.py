"""The store on disk: which folders there are, and how one is recognised.

====================================  =====================================================================
``rewarm-store.json``                 says that this is a store, and of which layout
``lock``                              ``flock``: held while names change, and while space is reserved
``snapshots/<model>/<version>/``      what is published; nothing in here ever changes
``staging/<uuid>/``                   being written; its writer holds a lock on the folder
``trash/<uuid>/``                     evicted; removed once no lease is left
``quarantine/<model>/<version>/``     found to be wrong; kept for a person to look at
``state/<model>/``                    priority, pin, reason of a quarantine, last use
``fetch/<key>/``                      downloads that can be resumed
``hits.json``                         how often what was asked for was there
``engine-cache.key``                  seals the compile caches that were captured here
====================================  =====================================================================
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from snapshots.durable import sync, write_whole
from snapshots.errors import StoreInvalid, StoreReadOnly
from snapshots.names import check_model_name, model_folder

MARKER = "rewarm-store.json"
LAYOUT = {"format": "rewarm-store", "version": 1}
_FOLDERS = ("snapshots", "staging", "trash", "quarantine", "state", "fetch")
_KNOWN = frozenset((*_FOLDERS, "lock", "hits.json", "engine-cache.key", MARKER, "lost+found"))


def default_root() -> Path:
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "rewarm" / "snapshots"


def published(root: Path, model: str) -> list[Path]:
    """The folders of a model's snapshots, by name; none where there is no store. Looks, and makes nothing."""
    try:
        return sorted(path for path in (root / "snapshots" / model_folder(model)).iterdir() if path.is_dir())
    except OSError:
        return []


class Folders:
    def __init__(self, root: Path, *, read_only: bool | None = None) -> None:
        """Open the store at ``root``, or make one where there is nothing. ``read_only`` None: find out.

        Raise StoreInvalid for a folder that holds something else, or a store of another layout.
        """
        self.root = root.absolute()
        self.read_only = bool(read_only)
        exists = (self.root / MARKER).is_file()
        if read_only is None and self.root.is_dir():
            self.read_only = not os.access(self.root, os.W_OK)
        if not exists:
            self._make()
        self._check()
        if not self.read_only:
            for name in _FOLDERS:  # a maker that was killed may have left some out
                (self.root / name).mkdir(exist_ok=True)

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def trash(self) -> Path:
        return self.root / "trash"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def fetch(self) -> Path:
        return self.root / "fetch"

    def published(self, model: str, version: str = "") -> Path:
        return self.root / "snapshots" / model_folder(model) / version

    def quarantined(self, model: str, version: str = "") -> Path:
        return self.root / "quarantine" / model_folder(model) / version

    def fresh(self, folder: Path) -> Path:
        """A name that nobody has."""
        return folder / uuid.uuid4().hex

    def all(self, kind: str = "snapshots") -> Iterator[tuple[str, str, Path]]:
        """Model, version and folder of each, by name. What vanishes meanwhile is left out."""
        for model in _names(self.root / kind):
            name = unquote(model)
            if check_model_name(name) is not None or model_folder(name) != model:
                continue
            for version in _names(self.root / kind / model):
                yield name, version, self.root / kind / model / version

    def _make(self) -> None:
        if self.read_only:
            raise StoreInvalid(f"{self.root} is no snapshot store, and cannot be written to")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            strange = sorted(name for name in _names(self.root) if name not in _KNOWN and not name.startswith("."))
            if strange:
                raise StoreInvalid(f"{self.root} holds {strange[0]!r}: name an empty folder for the store")
            (self.root / "lock").touch()
            write_whole(self.root / MARKER, json.dumps(LAYOUT).encode())
            sync(self.root)
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise StoreReadOnly(f"{self.root}: {error.strerror or error}") from error

    def _check(self) -> None:
        try:
            layout = json.loads((self.root / MARKER).read_bytes())
        except (OSError, ValueError) as error:
            raise StoreInvalid(f"{self.root / MARKER}: {error}") from error
        if layout != LAYOUT:
            raise StoreInvalid(f"{self.root} is a store of another version of rewarm: {str(layout)[:120]}")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
