"""A ``source`` that names a hub becomes a path of this machine before anything else is looked at: the phase
`fetching`."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from rewarm.hub import is_hub, parse_reference
from rewarm.messages import ReplicaSpec
from rewarm.states import FailureReason
from snapshots import (
    DigestMismatch,
    DiskFull,
    HubCache,
    HubSettings,
    Progress,
    PullOptions,
    SnapshotError,
    SourceRefused,
    pull,
)
from worker.launch import CannotStart
from worker.lifecycle import Faulted

_REASONS: dict[type[Exception], FailureReason] = {
    SourceRefused: FailureReason.SOURCE_REFUSED,
    DiskFull: FailureReason.DISK_FULL,
    DigestMismatch: FailureReason.WEIGHTS_CORRUPT,
}


def cached(spec: ReplicaSpec) -> ReplicaSpec:
    """With the path in the hub's cache, where all of it is there; else as it is. Reads names, nothing else."""
    if not is_hub(spec.source):
        return spec
    found = HubCache(HubSettings.read().cache).find(parse_reference(spec.source))
    return spec if found is None else replace(spec, source=str(found))


async def fetched(
    spec: ReplicaSpec, floor_bytes: int, report: Callable[[Progress | None, str], None], moved: Callable[[], None]
) -> ReplicaSpec:
    """With a path of this machine, downloaded where it was not there. ``report`` is given bytes (or None) and words.

    Raise CannotStart: SOURCE_REFUSED, SOURCE_UNAVAILABLE, DISK_FULL, WEIGHTS_CORRUPT.
    """
    spec = cached(spec)
    if not is_hub(spec.source):
        return spec
    reference, settings = parse_reference(spec.source), HubSettings.read()
    report(None, f"downloading {reference} from {settings.endpoint}")
    options = PullOptions(
        floor_bytes=floor_bytes,
        report=lambda progress: report(progress, f"{progress.phase} {progress.file}"),
        moved=moved,
        waiting=lambda: report(None, f"another process downloads {reference}"),
    )
    try:
        return replace(spec, source=str(await pull(reference, settings, options)))
    except (SnapshotError, DigestMismatch) as error:
        reason = _REASONS.get(type(error), FailureReason.SOURCE_UNAVAILABLE)
        raise CannotStart(Faulted(reason, str(error))) from error
    except OSError as error:
        text = f"{settings.cache}: {error.strerror or error}"
        raise CannotStart(Faulted(FailureReason.SOURCE_UNAVAILABLE, text)) from error
