"""``rewarm snapshot create``: which of the room's ways leads from this source to a snapshot."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path

import click

from snapshots import (
    MANIFEST_NAME,
    CaptureOptions,
    DownloadOptions,
    Fetched,
    FetchOptions,
    GgufMode,
    Manifest,
    OnProgress,
    Partial,
    SnapshotExists,
    Store,
    Throttle,
    capture_checkpoint,
    capture_gguf,
    fetch,
    idle_io,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line said."""

    model: str
    source: str
    revision: str | None
    gguf: str
    limit: int | None
    priority: int | None
    pin: bool
    low_priority: bool
    allow_sparse: bool
    headers: tuple[str, ...]
    s3_endpoint: str | None


async def bring(store: Store, wanted: Wanted, report: OnProgress) -> Fetched:
    """A local checkpoint or GGUF file is captured where it lies; everything else is downloaded first."""
    capturing = CaptureOptions(revision=wanted.revision, allow_holes=wanted.allow_sparse, report=report)
    path = Path(wanted.source).expanduser()
    if "://" not in wanted.source and not (path / MANIFEST_NAME).is_file():
        return await _local(store, wanted, path, capturing)
    options = FetchOptions(
        download=DownloadOptions(throttle=Throttle(wanted.limit), low_priority=wanted.low_priority, report=report),
        capture=capturing,
        gguf=GgufMode(wanted.gguf),
        headers=_headers(wanted.headers),
        object_store={"endpoint": wanted.s3_endpoint} if wanted.s3_endpoint else None,
    )
    return await fetch(store, wanted.model, wanted.source, options)


async def _local(store: Store, wanted: Wanted, path: Path, options: CaptureOptions) -> Fetched:
    from dataclasses import replace

    cancel = threading.Event()
    options = replace(options, throttle=Throttle(wanted.limit), cancel=cancel)

    def work() -> Manifest:
        if wanted.low_priority:
            idle_io()
        if path.suffix != ".gguf":
            return capture_checkpoint(store, wanted.model, path, options)
        with Partial(store, wanted.model, str(path.absolute())) as here:
            try:
                return capture_gguf(store, wanted.model, path, GgufMode(wanted.gguf), here.scratch, options)
            finally:
                here.discard()

    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return Fetched(await asyncio.shield(task), new=True)
    except asyncio.CancelledError:  # Ctrl-C: the thread notices at its next chunk, and leaves nothing
        cancel.set()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise
    except SnapshotExists as exists:
        found = store.find(exists.snapshot_id).manifest
        if found is None:
            raise
        return Fetched(found, new=False)


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    out = {}
    for text in given:
        name, separator, value = text.partition(":")
        if not separator or not name.strip():
            raise click.BadParameter(f"{text!r}: write 'Name: value'", param_hint="--header")
        out[name.strip()] = value.strip()
    return out
