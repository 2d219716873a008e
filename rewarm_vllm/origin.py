"""Where the weights of a load may come from: a store and a name in it, a snapshot that was named itself, a checkpoint.

``--model`` is either a checkpoint's folder or a snapshot's. A snapshot's folder says what it was made from, so that a
load of it can fall back on the checkpoint, if that still is what it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewarm_vllm.options import LoadOptions
from snapshots import (
    MANIFEST_NAME,
    CheckpointError,
    Fingerprint,
    Flavour,
    Found,
    Lease,
    SnapshotError,
    Store,
    WeightsMissing,
    check_model_name,
    checkpoint_fingerprint,
    checkpoint_source,
    compare,
    find_extras,
    inspect,
    resolve,
    source_changes,
    take,
)

ORDER = (Flavour.PACKED, Flavour.SHARDED, Flavour.PORTABLE)
"""The least work for the engine first."""


@dataclass(slots=True)
class Origin:
    """``checkpoint``: the folder to load from when no snapshot fits; None when there is none that is proved to be the
    same model, and ``missing`` says why."""

    name: str
    store: Store | None
    named: Lease | None  # the snapshot that `--model` names
    checkpoint: Path | None
    model: Fingerprint | None  # of the model itself; None when it cannot be told, as of a model on a hub
    missing: str = ""

    def close(self) -> None:
        """Let go of the snapshot that was named, if it is not what was loaded."""
        if self.named is not None:
            self.named.close()
            self.named = None

    def find(self, have: Fingerprint, flavours: tuple[Flavour, ...]) -> Found:
        """The snapshot that was named, if it fits; else the best one of the store."""
        reasons: tuple[str, ...] = ()
        if self.named is not None and self.named.manifest.flavour in flavours:
            lease, self.named = self.named, None
            against = compare(lease.manifest.fingerprint, have, lease.manifest.flavour)
            if not against:
                return Found(lease, ())
            reasons = (f"{lease.snapshot_id}: {'; '.join(against)}",)
            lease.close()
        if self.store is None:
            return Found(None, (*reasons, "no store of snapshots"))
        found = resolve(self.store, self.name, have, flavours=flavours, source=self.checkpoint)
        return Found(found.lease, tuple(dict.fromkeys((*reasons, *found.reasons))))


def origin_of(model_config: Any, options: LoadOptions) -> Origin:
    """Raise CheckpointError for a folder that is no snapshot and no checkpoint either."""
    folder = Path(model_config.model)
    if (folder / MANIFEST_NAME).is_file():
        return _of_snapshot(folder, options)
    name = options.name or folder.absolute().name
    if not folder.is_dir() or check_model_name(name) is not None:
        return Origin(name, None, None, folder, None)  # on a hub: vLLM's own business
    return Origin(name, _store(options.store_root), None, folder, checkpoint_fingerprint(inspect(folder)))


def _of_snapshot(folder: Path, options: LoadOptions) -> Origin:
    lease = take(folder)
    manifest = lease.manifest
    root = Path(options.store) if options.store else folder.absolute().parent.parent.parent
    source, missing = Path(manifest.source.location), ""
    try:
        changes = source_changes(manifest.source, checkpoint_source(inspect(source), find_extras(source)))
        if changes:
            missing = f"{source} is not what {lease.snapshot_id} was made from: {'; '.join(changes)}"
    except (CheckpointError, OSError) as error:
        missing = f"what {lease.snapshot_id} was made from cannot be used: {error}"
    made = manifest.fingerprint
    model = Fingerprint(made.tensors, made.weights, made.config, made.revision)
    return Origin(options.name or manifest.model, _store(root), lease, None if missing else source, model, missing)


def _store(root: Path) -> Store | None:
    """A load makes no store: where none is, there are no snapshots."""
    if not root.is_dir():
        return None
    try:
        return Store(root)
    except (SnapshotError, OSError):
        return None


def require_checkpoint(origin: Origin) -> Path:
    if origin.checkpoint is None:
        raise WeightsMissing(Path(origin.name), f"no snapshot fits, and {origin.missing}")
    return origin.checkpoint
