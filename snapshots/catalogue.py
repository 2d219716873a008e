"""What lies in a store, read from the folders themselves: there is no index that could say something else."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from snapshots import durable
from snapshots.entry import Entry, Reference
from snapshots.errors import CheckpointError, ManifestInvalid, SnapshotNotFound, SnapshotQuarantined
from snapshots.folders import Folders
from snapshots.manifest import Manifest
from snapshots.reading import check_complete, read_manifest
from snapshots.state import Hits, StateFiles


@dataclass(frozen=True, slots=True)
class Usage:
    used_bytes: int  # by the store, snapshots and everything else in it
    free_bytes: int  # on the disk, for us
    hits: Hits


class Catalogue:
    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        self.states = StateFiles(folders.root)

    def entries(self, *, quarantined: bool = False) -> list[Entry]:
        """Everything that is published, by model and version; with ``quarantined``, what is not to be used as well.

        ``leased`` is left False: see :meth:`with_leases`.
        """
        out = [self.entry(model, version, folder) for model, version, folder in self.folders.all()]
        if quarantined:
            found = self.folders.all("quarantine")
            out += [self.entry(model, version, folder, quarantined=True) for model, version, folder in found]
        return [entry for entry in out if entry is not None]

    def with_leases(self, *, locked: bool = False) -> list[Entry]:
        """All entries, and whether somebody reads them. ``locked``: the caller holds the store's lock already.

        Asking means to take each folder's lock for an instant. Only who holds the store's lock asks, because two who
        ask at once would take each other for readers.
        """
        with nullcontext() if locked else durable.locked(self.folders.lock):
            return [entry.with_lease(not durable.nobody_uses(entry.folder)) for entry in self.entries(quarantined=True)]

    def entry(self, model: str, version: str, folder: Path, *, quarantined: bool = False) -> Entry | None:
        """None when it is not there, or goes away while we look."""
        try:
            descriptor = durable.open_folder(folder)
        except OSError:
            return None
        manifest: Manifest | None = None
        problem: CheckpointError | None = None
        try:
            manifest = read_manifest(descriptor, folder)
            check_complete(descriptor, manifest, folder)
            problem = _misplaced(manifest, model, version, folder)
        except CheckpointError as error:
            problem = error
        finally:
            os.close(descriptor)
        if not folder.exists():
            return None
        return Entry(
            model,
            version,
            folder,
            size_bytes=durable.tree_bytes(folder),
            state=self.states.read(folder.parent.name, version),
            last_used=self.states.last_used(folder.parent.name, version) or (manifest.created if manifest else 0.0),
            quarantined=quarantined,
            manifest=manifest,
            problem=problem,
        )

    def find(self, reference: str | Reference, *, quarantined: bool = False) -> Entry:
        """The newest that fits. Raise SnapshotNotFound, or SnapshotQuarantined when only such ones do."""
        wanted = Reference.parse(reference) if isinstance(reference, str) else reference
        fitting = [e for e in self.entries(quarantined=True) if wanted.matches(e.model, e.version)]
        usable = [e for e in fitting if quarantined or not e.quarantined]
        if usable:
            return max(usable, key=lambda entry: (not entry.quarantined, entry.problem is None, entry.created))
        if fitting:
            found = fitting[0].state.quarantine
            reason = found.reason if found else "unknown"
            raise SnapshotQuarantined(f"{fitting[0].snapshot_id} is quarantined: {reason}")
        raise SnapshotNotFound(f"no snapshot of {wanted} in {self.folders.root}")

    def usage(self) -> Usage:
        root = self.folders.root
        return Usage(durable.tree_bytes(root), durable.free_bytes(root), self.states.hits())


def _misplaced(manifest: Manifest, model: str, version: str, folder: Path) -> CheckpointError | None:
    if (manifest.model, manifest.version) == (model, version):
        return None
    return ManifestInvalid(folder, f"is the folder of {model}@{version}, its manifest is {manifest.snapshot_id}'s")
