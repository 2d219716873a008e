"""The store of one machine: snapshots of many models and versions side by side, within a bound on space.

Several processes use one store at once, without a server. Names change only under the store's lock; a reader needs no
lock but its lease. Reading works on a store that cannot be written to.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from snapshots import durable
from snapshots.catalogue import Catalogue, Usage
from snapshots.entry import Entry, Reference
from snapshots.errors import (
    CaptureRunning,
    SnapshotExists,
    SnapshotPinned,
    SnapshotQuarantined,
    StoreReadOnly,
)
from snapshots.fingerprint import require_match
from snapshots.folders import Folders
from snapshots.lease import Lease, take
from snapshots.manifest import Fingerprint, Manifest
from snapshots.names import check_model_name
from snapshots.room import Room
from snapshots.staging import Staging
from snapshots.state import Quarantine, State
from snapshots.trash import Collected, Trash, below

DEFAULT_FLOOR_BYTES = 2 * 2**30
"""Left free on the disk, whatever is captured: logs and Redis write there too."""

CANARY = "canary"
"""The kind of quarantine that the same content does not leave by being captured again."""

_MANIFEST_ROOM = 2**20  # what a manifest and folders may take, besides the announced files
_FETCH_AGE_S = 7 * 86400.0

log = logging.getLogger("rewarm.snapshots.store")


class Store:
    def __init__(
        self,
        root: Path,
        *,
        capacity_bytes: int | None = None,
        floor_bytes: int = DEFAULT_FLOOR_BYTES,
        read_only: bool | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raise StoreInvalid where something else lies. ``capacity_bytes`` None: as much as the disk's floor
        leaves."""
        self.folders = Folders(root, read_only=read_only)
        self.catalogue = Catalogue(self.folders)
        self._trash = Trash(self.folders)
        self._room = Room(self.catalogue, self._trash, capacity_bytes=capacity_bytes, floor_bytes=floor_bytes)
        self._states = self.catalogue.states
        self._now = now

    @property
    def root(self) -> Path:
        return self.folders.root

    @property
    def read_only(self) -> bool:
        return self.folders.read_only

    # --- reading ---

    def list(self) -> list[Entry]:
        """All snapshots, those in quarantine too, and whether somebody reads them."""
        return self.catalogue.with_leases()

    def find(self, reference: str | Reference, *, quarantined: bool = False) -> Entry:
        return self.catalogue.find(reference, quarantined=quarantined)

    def usage(self) -> Usage:
        return self.catalogue.usage()

    def lease(self, reference: str | Reference, *, fingerprint: Fingerprint | None = None) -> Lease:
        """The right to read the newest that fits. Counts as a use, and as a hit or a miss.

        Raise SnapshotNotFound, SnapshotQuarantined, FingerprintMismatch (with ``fingerprint``: what the reader has
        and needs), or CheckpointError when the folder is damaged: quarantine it then, and load from the source.
        """
        try:
            entry = self.find(reference)
            if entry.problem is not None:
                raise entry.problem
            if fingerprint is not None and entry.manifest is not None:
                require_match(entry.snapshot_id, entry.manifest, fingerprint)
            lease = take(entry.folder, self._after_reading)
        except Exception:
            self._note_use(None)
            raise
        self._note_use(entry)
        return lease

    # --- writing ---

    def begin(self, model: str, sizes: Mapping[str, int], *, beside: Staging | None = None) -> Staging:
        """Reserve the space for these files and start a snapshot. One at a time for a model; ``beside`` is another
        one of it that the same process is making, and ends after this one.

        Raise CaptureRunning, StoreFull (and then nothing was evicted in vain), StoreReadOnly.
        """
        self.require_writable()
        problem = check_model_name(model)
        if problem is not None:
            raise ValueError(problem)
        with durable.locked(self.folders.lock):
            held = [self._claim(model)] if beside is None else []
            folder = self.folders.fresh(self.folders.staging)
            try:
                self._room.make(sum(sizes.values()) + _MANIFEST_ROOM)
                folder.mkdir()
                held.append(durable.open_folder(folder))
                durable.try_lock(held[-1], shared=True)
                staging = Staging(folder, tuple(held), sizes, self._publisher(model))
                with durable.full_disk_is_typed(folder):
                    staging.reserve()
            except BaseException:
                durable.remove_tree(folder)
                for descriptor in held:
                    durable.unlock(descriptor)
                    os.close(descriptor)
                raise
        return staging

    def extend(self, staging: Staging, sizes: Mapping[str, int]) -> None:
        """Reserve space for more files of a snapshot that :meth:`begin` started. Raise StoreFull; it stays as it
        was."""
        with durable.locked(self.folders.lock):
            self._room.make(sum(sizes.values()))
            with durable.full_disk_is_typed(staging.folder):
                staging.extend(sizes)

    def reserve_room(self, need_bytes: int) -> None:
        """Evict until so much may be written below the store's root. Raise StoreFull, StoreReadOnly."""
        self.require_writable()
        with durable.locked(self.folders.lock):
            self._room.make(need_bytes)

    def adopt(self, folder: Path, manifest: Manifest) -> Path:
        """Publish a folder below the store's root that holds exactly the manifest's files, whole and verified.

        Raise as :meth:`begin` does, and SnapshotExists; the folder is left as it is then.
        """
        self.require_writable()
        with durable.locked(self.folders.lock):
            claim = self._claim(manifest.model)
        staging = Staging(folder, (claim,), {}, self._publisher(manifest.model))
        try:
            staging.sync_files()
            return staging.publish(manifest)
        finally:
            staging.release()

    def set_state(
        self, reference: str | Reference, *, pinned: bool | None = None, priority: int | None = None
    ) -> Entry:
        self.require_writable()
        with durable.locked(self.folders.lock):
            entry = self.find(reference, quarantined=True)
            state = State(
                entry.state.priority if priority is None else priority,
                entry.state.pinned if pinned is None else pinned,
                entry.state.quarantine,
            )
            self._states.write(entry.folder.parent.name, entry.version, state)
            return self.find(Reference(entry.model, entry.version), quarantined=True)

    def quarantine(self, reference: str | Reference, kind: str, reason: str) -> None:
        """Take it out of use at once, and keep it with its reason. Readers that have a lease are not disturbed."""
        self.require_writable()
        with durable.locked(self.folders.lock):
            entry = self.find(reference)
            state = State(entry.state.priority, False, Quarantine(kind, reason[:2000], self._now()))
            self._states.write(entry.folder.parent.name, entry.version, state)
            target = self.folders.quarantined(entry.model, entry.version)
            if target.exists():
                self._trash.put(target)
            target.parent.mkdir(parents=True, exist_ok=True)
            entry.folder.rename(target)
            durable.sync(target.parent)
            durable.sync(entry.folder.parent)
        log.warning("quarantined id=%s kind=%s reason=%s", entry.snapshot_id, kind, reason)
        self._trash.empty()

    def evict(self, reference: str | Reference) -> bool:
        """Remove a snapshot. Return False when readers still hold it: it is out of sight, and goes with the
        last one."""
        self.require_writable()
        with durable.locked(self.folders.lock):
            entry = self.find(reference, quarantined=True)
            if entry.state.pinned:
                raise SnapshotPinned(f"{entry.snapshot_id} is pinned: unpin it first")
            gone = self._room.evict(entry)
        self._trash.empty()
        return not gone.exists()

    def collect(self, *, quarantined: bool = False) -> Collected:
        """Remove what killed processes left, evicted snapshots without readers, and downloads that nobody resumed for
        a week; with ``quarantined``, also what is in quarantine."""
        self.require_writable()
        with durable.locked(self.folders.lock):
            if quarantined:
                for _, _, folder in list(self.folders.all("quarantine")):
                    self._trash.put(folder)
            for folder in below(self.folders.staging):
                if durable.nobody_uses(folder):
                    self._trash.put(folder)
            for folder in below(self.folders.fetch):
                if self._now() - folder.stat().st_mtime > _FETCH_AGE_S and durable.nobody_uses(folder):
                    self._trash.put(folder)
            self._remove_empty()
            there = {(f.parent.name, v) for kind in ("snapshots", "quarantine") for _, v, f in self.folders.all(kind)}
            self._states.prune(lambda folder, version: (folder, version) in there)
            for stray in self.root.glob(".*"):
                stray.unlink(missing_ok=True)
        return self._trash.empty()

    # --- inside ---

    def _claim(self, model: str) -> int:
        folder = self.folders.published(model)
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = durable.open_folder(folder)
        if not durable.try_lock(descriptor):
            os.close(descriptor)
            raise CaptureRunning(f"another process is making a snapshot of {model}")
        return descriptor

    def _publisher(self, model: str) -> Callable[[Staging, Manifest], Path]:
        def publish(staging: Staging, manifest: Manifest) -> Path:
            if manifest.model != model:
                raise ValueError(f"a snapshot of {manifest.model} was begun as one of {model}")
            target = self.folders.published(model, manifest.version)
            with durable.locked(self.folders.lock):
                self._refuse_known(manifest)
                there = self.catalogue.entry(model, manifest.version, target)
                if there is not None and there.problem is None:
                    raise SnapshotExists(there.snapshot_id)
                if there is not None:
                    self._trash.put(target)  # damaged, and now replaced by the same content
                staging.folder.rename(target)
                durable.sync(target.parent)
                durable.sync(target.parent.parent)
            log.info("published id=%s bytes=%d", manifest.snapshot_id, manifest.total_bytes)
            return target

        return publish

    def _refuse_known(self, manifest: Manifest) -> None:
        folder = self.folders.quarantined(manifest.model, manifest.version)
        state = self._states.read(folder.parent.name, manifest.version)
        if folder.exists() and state.quarantine is not None and state.quarantine.kind == CANARY:
            raise SnapshotQuarantined(f"{manifest.snapshot_id} answers wrongly: {state.quarantine.reason}")

    def _remove_empty(self) -> None:
        for kind in ("snapshots", "quarantine"):
            for folder in below(self.root / kind):
                if durable.nobody_uses(folder):  # nobody captures into it
                    try:
                        folder.rmdir()
                    except OSError:
                        pass  # not empty

    def _after_reading(self) -> None:
        """The last reader of an evicted snapshot removes it."""
        if not self.read_only:
            self._trash.empty()

    def _note_use(self, entry: Entry | None) -> None:
        """A hit, or a miss where there is no entry. Reading goes on whether or not it can be written down."""
        if self.read_only:
            return
        try:
            if entry is not None and entry.folder.exists():
                self._states.touch(entry.folder.parent.name, entry.version, self._now())
            # A cold start must not wait for somebody's eviction, only to be counted.
            with durable.locked_if_free(self.folders.lock) as mine:
                if mine:
                    self._states.count(hit=entry is not None)
        except OSError as error:
            log.debug("use not noted error=%s", error)

    def require_writable(self) -> None:
        if self.read_only:
            raise StoreReadOnly(f"{self.root} can only be read")
