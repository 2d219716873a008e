"""A download in the store that can be resumed: ``fetch/<key>/files`` and, beside it, the journals of what is
there."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from snapshots import durable
from snapshots.digests import blake3_hex
from snapshots.errors import CaptureRunning
from snapshots.store import Store


class Partial:
    """Held by one process at a time. Leaving the context keeps what is there; :meth:`discard` does not."""

    def __init__(self, store: Store, model: str, location: str) -> None:
        """Raise CaptureRunning when another process downloads the same, StoreReadOnly."""
        key = blake3_hex([f"{model}\n{location}".encode()])[:24]
        self.folder = store.folders.fetch / key
        self._store = store
        store.require_writable()
        with durable.locked(store.folders.lock):
            self.folder.mkdir(exist_ok=True)
            self._descriptor = durable.open_folder(self.folder)
            if not durable.try_lock(self._descriptor):
                os.close(self._descriptor)
                raise CaptureRunning(f"another process is downloading {location}")
            os.utime(self.folder)  # young again, to the collector
        self.files.mkdir(exist_ok=True)
        self.journals.mkdir(exist_ok=True)

    @property
    def files(self) -> Path:
        return self.folder / "files"

    @property
    def journals(self) -> Path:
        return self.folder / "journals"

    @property
    def scratch(self) -> Path:
        """For a checkpoint made from what was downloaded. In a folder of its own: who publishes into a folder locks it,
        and ours is locked."""
        return self.folder / "scratch" / "checkpoint"

    def reserve_room(self, total_bytes: int) -> None:
        """For what is still to come. Raise StoreFull."""
        self._store.reserve_room(max(0, total_bytes - durable.tree_bytes(self.folder)))

    def keep_only(self, names: set[str]) -> None:
        """Remove what an earlier listing had, and this one has not."""
        for path in sorted(self.files.rglob("*"), reverse=True):
            if path.is_dir():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.relative_to(self.files).as_posix() not in names:
                path.unlink()

    def discard(self) -> None:
        durable.remove_tree(self.folder)

    def close(self) -> None:
        durable.unlock(self._descriptor)
        os.close(self._descriptor)

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
