"""Which snapshot an engine loads: the best one that fits, or none, and then every reason why. Never a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from snapshots.checkpoint import inspect
from snapshots.entry import Entry, Reference
from snapshots.errors import CheckpointError, SnapshotError
from snapshots.extras import find_extras
from snapshots.fingerprint import checkpoint_source, compare, source_changes
from snapshots.lease import Lease
from snapshots.manifest import Fingerprint, Flavour, Source
from snapshots.store import Store


@dataclass(frozen=True, slots=True)
class Found:
    """``lease`` None: load from the source checkpoint, and say ``reasons``, a line for each snapshot that did not fit.
    The caller closes the lease."""

    lease: Lease | None
    reasons: tuple[str, ...]


def resolve(
    store: Store, model: str, have: Fingerprint, *, flavours: Sequence[Flavour], source: Path | None = None
) -> Found:
    """Lease the newest snapshot of the first of ``flavours`` that fits ``have``.

    With ``source``, the checkpoint's folder, a snapshot that was made from it must have been made from what lies there
    now: a changed config, or weights that were written to since, make it unfit. That costs headers and small files, no
    weights. One that was made from elsewhere fits only if ``have.weights`` proves it. A source that is gone is no
    reason: a snapshot is whole without it.
    """
    reasons: list[str] = []
    now = _source(source)
    by_age = sorted(store.catalogue.entries(), key=lambda entry: -entry.created)
    for flavour in flavours:
        for entry in by_age:
            if not Reference(model, flavour=flavour).matches(entry.model, entry.version):
                continue
            against = _against(entry, have, now)
            if against:
                reasons.append(f"{entry.snapshot_id}: {'; '.join(against)}")
                continue
            try:
                return Found(store.lease(Reference(model, entry.version)), tuple(reasons))
            except (SnapshotError, CheckpointError) as error:  # evicted or damaged since we looked
                reasons.append(f"{entry.snapshot_id}: {error}")
    if not reasons:
        reasons.append(f"no snapshot of {model} in {store.root}")
    return Found(None, tuple(reasons))


def _against(entry: Entry, have: Fingerprint, now: Source | None) -> tuple[str, ...]:
    if entry.problem is not None or entry.manifest is None:
        return (str(entry.problem),)
    made = entry.manifest
    reasons = compare(made.fingerprint, have, made.flavour)
    if reasons or now is None:
        return reasons
    if made.source.location == now.location:
        return source_changes(made.source, now)
    if made.fingerprint.weights is not None and made.fingerprint.weights == have.weights:
        return ()
    # Two models of one shape, as fine-tunes are, differ in nothing else that can be told without reading them.
    return (f"was made from {made.source.location}: whether {now.location} holds the same weights was not compared",)


def _source(folder: Path | None) -> Source | None:
    if folder is None:
        return None
    try:
        return checkpoint_source(inspect(folder), find_extras(folder))
    except (CheckpointError, OSError):
        return None
