"""A hub over HTTP: what a repository holds at a revision, and the bytes of it. Errors in plain words."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import aiohttp

from rewarm.hub import HubReference
from snapshots.errors import SourceRefused, SourceUnavailable
from snapshots.hub.contents import HubListing, read_file, remote
from snapshots.hub.settings import HubSettings
from snapshots.names import check_file_name
from snapshots.sources.base import Listing, RemoteFile, Transient, choose_files
from snapshots.sources.http import HttpSource


class HubSource(HttpSource):
    """``moved`` is called for every piece that comes, whatever becomes of it."""

    def __init__(self, reference: HubReference, settings: HubSettings, moved: Callable[[], None]) -> None:
        headers = {"Authorization": f"Bearer {settings.token}"} if settings.token else None
        super().__init__(settings.endpoint, headers=headers)
        self._reference, self._settings, self._moved = reference, settings, moved

    async def contents(self) -> HubListing:
        """Raise SourceRefused (gated, not there), Transient (no network)."""
        reference, endpoint = self._reference, self._settings.endpoint
        revision = quote(reference.revision, safe="")
        url = f"{endpoint}/api/models/{reference.repo}/revision/{revision}?blobs=true"
        try:
            async with self._client().get(url) as response:
                self._check(response)
                told: Any = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Transient(f"{type(error).__name__}: {error}") from error
        try:
            commit = str(told["sha"])
            files = {str(entry["rfilename"]): read_file(entry) for entry in told["siblings"]}
        except (LookupError, TypeError, ValueError) as error:
            raise SourceUnavailable(f"{endpoint} does not answer as a hub does") from error
        wanted = [name for name in self._choose(sorted(files)) if check_file_name(name) is None]
        # From here on by commit: what a branch means may change while we download.
        self._url = f"{endpoint}/{reference.repo}/resolve/{commit}"
        return HubListing(commit, tuple(files[name] for name in wanted))

    def _choose(self, names: list[str]) -> list[str]:
        reference = self._reference
        if reference.file is not None:
            if reference.file not in names:
                raise SourceRefused(f"{reference.repo} has no file {reference.file} at {reference.revision}")
            return [reference.file]
        try:
            return choose_files(names)
        except SourceUnavailable as error:
            raise SourceRefused(f"{reference.repo}: {error}, as in hf:{reference.repo}/FILE.gguf") from error

    async def read(self, file: RemoteFile, start: int, stop: int) -> AsyncIterator[bytes]:
        async for piece in super().read(file, start, stop):
            self._moved()
            yield piece

    def _check(self, response: aiohttp.ClientResponse) -> None:  # type: ignore[override]  # with our own words
        if response.status in (401, 403, 404):
            raise SourceRefused(self._refusal(response.status, response.headers.get("X-Error-Code", "")))
        super()._check(response)

    def _refusal(self, status: int, code: str) -> str:
        reference, settings = self._reference, self._settings
        if code == "GatedRepo" or (status == 403 and not code):
            who = "the token that this machine has was not given access" if settings.token else "there is no token here"
            return (
                f"{reference.repo} is gated, and {who}: accept its terms at {settings.endpoint}/{reference.repo}, and"
                " set HF_TOKEN for the worker (or run `hf auth login` as its user)"
            )
        if code == "RevisionNotFound":
            return f"{reference.repo} has no revision {reference.revision!r}"
        if code == "EntryNotFound":
            return f"{reference.repo} lacks a file that it lists"
        return f"{settings.endpoint} has no model {reference.repo}, or does not show it to this machine"

    async def listing(self) -> Listing:
        contents = await self.contents()
        return Listing(str(self._reference), tuple(remote(file) for file in contents.files))
