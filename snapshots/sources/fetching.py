"""From anywhere into the store: downloaded with resumption, verified, published. Also ahead of need, at low
priority."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace as changed

from snapshots.capture import CaptureOptions, capture_checkpoint
from snapshots.errors import SnapshotExists, SourceChanged, SourceUnavailable
from snapshots.gguf_snapshot import GgufMode, capture_gguf
from snapshots.linux import idle_io
from snapshots.manifest import MANIFEST_NAME, Manifest, parse
from snapshots.partial import Partial
from snapshots.sources.base import Listing, RemoteFile, Source
from snapshots.sources.download import Download, DownloadOptions, retrying
from snapshots.store import Store

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """``headers`` for http(s), ``object_store`` for S3 (see :class:`snapshots.sources.objects.ObjectSource`)."""

    download: DownloadOptions = field(default_factory=DownloadOptions)
    capture: CaptureOptions = field(default_factory=CaptureOptions)
    gguf: GgufMode = GgufMode.DEQUANTISE
    headers: Mapping[str, str] | None = None
    object_store: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    manifest: Manifest
    new: bool  # False: it was in the store already, and nothing was downloaded


def open_source(location: str, options: FetchOptions | None = None) -> Source:
    """http(s)://…, s3://…, or a path. The libraries are imported only for who uses them."""
    options = options or FetchOptions()
    if location.startswith(("http://", "https://")):
        from snapshots.sources.http import HttpSource

        return HttpSource(location, headers=options.headers)
    if location.startswith("s3://"):
        from snapshots.sources.objects import ObjectSource

        return ObjectSource(location, **(options.object_store or {}))
    if "://" in location:
        raise SourceUnavailable(f"{location}: write http://, https://, s3:// or a path")
    from snapshots.sources.folder import FolderSource

    return FolderSource(Path(location))


async def fetch(store: Store, model: str, location: str, options: FetchOptions | None = None) -> Fetched:
    """Bring the model into the store, unless what lies at ``location`` is there already.

    Cancel the task to stop it: what was downloaded stays for a week, and the next call goes on from there. Raise
    SourceUnavailable, SourceChanged, StoreFull, CaptureRunning, or CheckpointError for weights that are not whole.
    """
    options = options or FetchOptions()
    source = open_source(location, options)
    try:
        listing = await retrying(source.listing, location, options.download)
        manifest = await _remote_manifest(source, listing, options)
        if manifest is not None:
            manifest = changed(manifest, model=model)
        there = await asyncio.to_thread(_find, store, model, listing, manifest)
        if there is not None:
            return Fetched(there, new=False)
        if manifest is not None:
            listing = await _listing_of(source, listing, manifest, options)
        return Fetched(await _bring(store, model, source, listing, manifest, options), new=True)
    except SnapshotExists as exists:  # found out only when all of it was here
        found = store.find(exists.snapshot_id).manifest
        if found is None:
            raise
        return Fetched(found, new=False)
    finally:
        await source.close()


async def prefetch(
    store: Store, model: str, location: str, *, bytes_per_s: float | None = None, options: FetchOptions | None = None
) -> Fetched:
    """:func:`fetch` ahead of need: disk work waits for everybody else's. The limit may be changed while it runs,
    through ``options.download.throttle``."""
    options = options or FetchOptions()
    if bytes_per_s is not None:
        options.download.throttle.limit(bytes_per_s)
    return await fetch(store, model, location, replace(options, download=replace(options.download, low_priority=True)))


async def _bring(
    store: Store, model: str, source: Source, listing: Listing, manifest: Manifest | None, options: FetchOptions
) -> Manifest:
    with await asyncio.to_thread(Partial, store, model, listing.location) as here:
        await asyncio.to_thread(here.keep_only, {file.name for file in listing.files})
        await asyncio.to_thread(here.reserve_room, listing.total_bytes)
        digests = {file.name: file.digests() for file in manifest.files} if manifest is not None else None
        download = Download(source, here.files, here.journals, options.download, digests=digests, **_chunks(manifest))
        await download.run(listing)
        work = partial(_publish, store, model, here, listing, manifest, options)
        made = await _in_thread(work, options)
        await asyncio.to_thread(here.discard)
        return made


def _publish(
    store: Store,
    model: str,
    here: Partial,
    listing: Listing,
    manifest: Manifest | None,
    options: FetchOptions,
    cancel: threading.Event,
) -> Manifest:
    if manifest is not None:
        try:
            store.adopt(here.files, manifest)
        except SnapshotExists:
            here.discard()
            raise
        return manifest
    capturing = replace(
        options.capture,
        location=listing.location,
        seen=listing.seen,
        cancel=cancel,
        throttle=None,
        report=options.download.report,
    )
    gguf = [file.name for file in listing.files if file.name.endswith(".gguf")]
    try:
        if gguf:
            return capture_gguf(store, model, here.files / gguf[0], options.gguf, here.scratch, capturing)
        return capture_checkpoint(store, model, here.files, capturing)
    except SnapshotExists:
        here.discard()
        raise


async def _in_thread(work: Callable[[threading.Event], _T], options: FetchOptions) -> _T:
    """In a thread with the download's priority, that is waited for even when the task is cancelled: it notices
    soon."""
    cancel = threading.Event()
    start = idle_io if options.download.low_priority else None
    with ThreadPoolExecutor(1, "rewarm-fetch", initializer=start) as pool:
        future = asyncio.get_running_loop().run_in_executor(pool, work, cancel)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            cancel.set()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # it is cancelled: what became of it is nobody's concern
            raise


async def _remote_manifest(source: Source, listing: Listing, options: FetchOptions) -> Manifest | None:
    file = listing.find(MANIFEST_NAME)
    if file is None:
        return None

    async def read() -> bytes:
        return b"".join([piece async for piece in source.read(file, 0, file.size)])

    return parse(await retrying(read, MANIFEST_NAME, options.download), Path(f"{listing.location}/{MANIFEST_NAME}"))


async def _listing_of(source: Source, listing: Listing, manifest: Manifest, options: FetchOptions) -> Listing:
    files: list[RemoteFile] = []
    for file in manifest.files:
        found = await retrying(partial(source.look, file.name), file.name, options.download)
        if found is None:
            raise SourceUnavailable(f"{listing.location}: {file.name} is missing; the manifest names it")
        if found.size != file.size:
            raise SourceChanged(f"{listing.location}: {file.name} has {found.size} bytes, not {file.size}")
        files.append(found)
    return Listing(listing.location, tuple(files))


def _find(store: Store, model: str, listing: Listing, manifest: Manifest | None) -> Manifest | None:
    for entry in store.catalogue.entries():
        if entry.model != model or entry.problem is not None or entry.manifest is None:
            continue
        source = entry.manifest.source
        same = entry.version == manifest.version if manifest is not None else source.revision == listing.seen
        if same and (manifest is not None or source.location == listing.location):
            return entry.manifest
    return None


def _chunks(manifest: Manifest | None) -> dict[str, int]:
    return {} if manifest is None else {"chunk_bytes": manifest.chunk_bytes}
