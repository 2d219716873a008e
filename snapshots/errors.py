"""What can be wrong with weights on disk. Each error knows the reason that the retry policy reads."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rewarm.states import FailureReason


class CheckpointError(Exception):
    """``file`` is what is missing or broken, ``offset`` the byte in it where reading stopped making sense, if any."""

    reason: ClassVar[FailureReason]

    def __init__(self, file: Path, problem: str, *, offset: int | None = None) -> None:
        at = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{file}{at}: {problem}")
        self.file = file
        self.offset = offset
        self.problem = problem


class WeightsMissing(CheckpointError):
    """A file or folder is not there or cannot be read."""

    reason = FailureReason.WEIGHTS_MISSING


class WeightsCorrupt(CheckpointError):
    """A file is there and is not what it should be: truncated, overlong, contradicting itself."""

    reason = FailureReason.WEIGHTS_CORRUPT


class PrepareFailed(Exception):
    """A checkpoint could not be made: its source, a library or the disk's space is missing. The message says what to
    do."""


class FileChanged(WeightsCorrupt):
    """A file is not the one that was opened: its size, time or bytes changed while it was read."""


class DigestMismatch(WeightsCorrupt):
    """The bytes of a chunk are not those that were captured. ``offset`` is where the chunk starts."""


class ManifestInvalid(WeightsCorrupt):
    """A manifest says something that no capture writes."""


class ManifestVersion(ManifestInvalid):
    """A manifest of another version of rewarm, or no manifest of rewarm at all."""


class SnapshotError(Exception):
    """The store will not do it. ``code`` is stable; the message names the snapshot or the file."""

    code: ClassVar[str] = "snapshot_error"
    advice: ClassVar[str] = "The message says what happened."


class SnapshotNotFound(SnapshotError):
    code = "snapshot_not_found"
    advice = "`rewarm snapshot list` shows what there is; `rewarm snapshot create` makes one."


class SnapshotExists(SnapshotError):
    """The same content lies in the store already: ``snapshot_id`` names it. Nothing was written."""

    code = "snapshot_exists"
    advice = "Nothing has to be done: use the one that is there."

    def __init__(self, snapshot_id: str) -> None:
        super().__init__(f"{snapshot_id} is in the store already, with the same content")
        self.snapshot_id = snapshot_id


class SnapshotInUse(SnapshotError):
    code = "snapshot_in_use"
    advice = "Wait until its readers are done."


class SnapshotPinned(SnapshotError):
    code = "snapshot_pinned"
    advice = "`rewarm snapshot unpin` first, if it really has to go."


class SnapshotQuarantined(SnapshotError):
    code = "snapshot_quarantined"
    advice = "`rewarm snapshot show` says why; `evict` removes it, and `create` then makes another."


class CaptureRunning(SnapshotError):
    """Another process is making a snapshot of this model."""

    code = "capture_running"
    advice = "Wait for the other one: its snapshot serves both."


class StoreFull(SnapshotError):
    """Not enough room, and what could be evicted would not make it."""

    code = "store_full"
    advice = "Unpin or evict something, raise `--capacity`, or give the store a larger disk."


class StoreReadOnly(SnapshotError):
    code = "store_read_only"
    advice = "Run the command where the store can be written to."


class StoreInvalid(SnapshotError):
    """The folder is no store, or one of another version."""

    code = "store_invalid"
    advice = "Name an empty folder, or one that is a store, with `--store`."


class FingerprintMismatch(SnapshotError):
    """The snapshot was made for something else. ``reasons`` is a line each; load from the source checkpoint."""

    code = "fingerprint_mismatch"
    advice = "Load from the source checkpoint, and make a new snapshot."

    def __init__(self, snapshot_id: str, reasons: tuple[str, ...]) -> None:
        super().__init__(f"{snapshot_id} does not fit: {'; '.join(reasons)}")
        self.reasons = reasons


class Cancelled(SnapshotError):
    """Whoever asked for it no longer wants it. Nothing of it is left."""

    code = "snapshot_cancelled"
    advice = "Run it again when it is wanted; a download goes on where it was."


class SourceUnavailable(SnapshotError):
    """A source did not answer, or refused, as often as it is asked again."""

    code = "source_unavailable"
    advice = "Look at the address, the network and the access rights."


class SourceRefused(SourceUnavailable):
    """A hub has no such model, or does not give it to us. Asking again does not help."""

    code = "source_refused"
    advice = "The message says whether it is the name, the revision, or terms to accept and a token."


class DiskFull(SnapshotError):
    """No room on the disk of the hub's cache for what has to be downloaded. Nothing was."""

    code = "disk_full"
    advice = "Make room, or name a larger disk with HF_HUB_CACHE."


class SourceChanged(SnapshotError):
    """A remote file was replaced while it was downloaded."""

    code = "source_changed"
    advice = "Run it again: the new files are taken then."
