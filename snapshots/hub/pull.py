"""From a hub into the cache: room looked for first, resumed where it was left, whole by its digests or not there."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rewarm.hub import HubReference
from rewarm.units import format_bytes
from snapshots.errors import DigestMismatch, DiskFull, SourceUnavailable
from snapshots.hub.cache import HubCache
from snapshots.hub.contents import HubFile, HubListing, remote
from snapshots.hub.settings import HubSettings
from snapshots.progress import OnProgress, Progress, ignore
from snapshots.sources.base import Listing
from snapshots.sources.download import Download, DownloadOptions, retrying

if TYPE_CHECKING:
    from snapshots.hub.source import HubSource

CHUNK_BYTES = 16 * 2**20
"""Each chunk is a request to the hub, which counts them, and one to where it redirects."""

_STAGING = ".rewarm"
_LOOK_EVERY_S = 0.5
_READ_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class PullOptions:
    """``floor_bytes`` stay free on the disk. ``moved`` is called when anything came, also where no chunk is whole yet;
    ``waiting`` when another process is downloading the same."""

    floor_bytes: int = 0
    at_once: int = 4
    attempts: int = 6
    retry_s: float = 0.5
    report: OnProgress = ignore
    moved: Callable[[], None] = field(default=lambda: None)
    waiting: Callable[[], None] = field(default=lambda: None)


async def pull(
    reference: HubReference, settings: HubSettings, options: PullOptions | None = None, *, refresh: bool = False
) -> Path:
    """The checkpoint's folder, or the GGUF file. What the cache has is taken without asking the hub, unless
    ``refresh``: a branch may have moved.

    Raise SourceRefused (gated, not there), SourceUnavailable (no network), DiskFull, DigestMismatch. Cancel the task to
    stop; what was downloaded stays for the next time.
    """
    options = options or PullOptions()
    cache = HubCache(settings.cache)
    here = await asyncio.to_thread(cache.find, reference)
    if here is not None and not refresh:
        return here
    if settings.offline:
        raise SourceUnavailable(f"{reference} is not in {cache.root}, and HF_HUB_OFFLINE forbids to download it")
    from snapshots.hub.source import HubSource  # an HTTP client, only for who downloads

    source = HubSource(reference, settings, options.moved)
    try:
        return await _bring(reference, cache, source, options)
    except SourceUnavailable as error:
        if _refused(error):
            raise
        where = f"{settings.endpoint} cannot be used"
        raise SourceUnavailable(f"{reference} is not whole in {cache.root}, and {where}: {error}") from error
    finally:
        await source.close()


def _refused(error: SourceUnavailable) -> bool:
    return type(error) is not SourceUnavailable


async def _bring(reference: HubReference, cache: HubCache, source: HubSource, options: PullOptions) -> Path:
    download = DownloadOptions(
        at_once=options.at_once, attempts=options.attempts, retry_s=options.retry_s, report=options.report
    )
    contents = await retrying(source.contents, str(reference), download)
    home = cache.home(reference.repo)
    staging = home / _STAGING / contents.commit
    await asyncio.to_thread(staging.mkdir, parents=True, exist_ok=True)
    async with _alone(staging / "lock", options.waiting):
        missing = [file for file in contents.files if not cache.blob(reference.repo, file.digest).is_file()]
        _check_room(cache.root, staging, missing, options.floor_bytes)
        files, journals = staging / "files", staging / "journals"
        for folder in (files, journals):
            await asyncio.to_thread(folder.mkdir, exist_ok=True)
        listing = Listing(str(reference), tuple(remote(file) for file in missing))
        await Download(source, files, journals, download, chunk_bytes=CHUNK_BYTES).run(listing)
        for file in missing:
            await _adopt(reference, cache, files / file.name, journals, file, options)
        await asyncio.to_thread(_name_all, reference, cache, contents)
        await asyncio.to_thread(shutil.rmtree, staging, True)
    found = await asyncio.to_thread(cache.find, reference)
    if found is None:
        raise SourceUnavailable(f"{reference.repo} at {contents.commit} holds no whole checkpoint")
    return found


async def _adopt(
    reference: HubReference, cache: HubCache, path: Path, journals: Path, file: HubFile, options: PullOptions
) -> None:
    """A file whose digest is right becomes a blob; another one is forgotten, so that the next attempt asks for it."""
    found = await asyncio.to_thread(_digest, path, file, options)
    if found != file.digest:
        path.unlink(missing_ok=True)
        (journals / f"{file.name}.journal").unlink(missing_ok=True)
        raise DigestMismatch(Path(file.name), f"is {found}, the hub says {file.digest}", offset=0)
    blob = cache.blob(reference.repo, file.digest)
    blob.parent.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(os.replace, path, blob)


def _name_all(reference: HubReference, cache: HubCache, contents: HubListing) -> None:
    for file in contents.files:
        cache.place(reference.repo, contents.commit, file.name, cache.blob(reference.repo, file.digest))
    cache.name(reference, contents.commit)


def _digest(path: Path, file: HubFile, options: PullOptions) -> str:
    """As the hub names it: SHA-256, or of small files git's SHA-1 of a blob."""
    large = len(file.digest) == 64
    digest = hashlib.sha256() if large else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    done = 0
    with path.open("rb") as opened:
        while piece := opened.read(_READ_BYTES):
            digest.update(piece)
            done += len(piece)
            options.moved()
            if large:
                options.report(Progress("verifying", done, file.size, file.name))
    return digest.hexdigest()


def _check_room(root: Path, staging: Path, missing: list[HubFile], floor_bytes: int) -> None:
    """Raise DiskFull. What an earlier attempt has taken already is not asked for again."""
    taken = sum(path.stat().st_blocks * 512 for path in (staging / "files").rglob("*") if path.is_file())
    need = max(0, sum(file.size for file in missing) - taken)
    free = shutil.disk_usage(root).free
    if need + floor_bytes > free:
        kept = f", of which {format_bytes(floor_bytes)} are to stay free" if floor_bytes else ""
        raise DiskFull(
            f"{format_bytes(need)} are needed on the disk of {root}, and {format_bytes(free)} are free{kept}"
        )


@asynccontextmanager
async def _alone(path: Path, waiting: Callable[[], None]) -> AsyncIterator[None]:
    """One process at a time; the next one then finds everything here."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                waiting()
                await asyncio.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(descriptor)
