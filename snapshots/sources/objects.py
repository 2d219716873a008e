"""A prefix in an object store: S3 and what speaks like it, through obstore (Rust's object_store)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from snapshots.errors import SourceChanged, SourceUnavailable
from snapshots.names import check_file_name
from snapshots.sources.base import Listing, RemoteFile, Transient, choose_files

_RETRIES = 2  # inside the library; ours come on top, and are the ones that are seen


class ObjectSource:
    """``s3://bucket/prefix``, or the key of one GGUF file. Credentials, region and endpoint come from the usual
    variables (``AWS_ACCESS_KEY_ID`` …, ``AWS_ENDPOINT_URL``), or from ``options`` with the names of obstore's
    S3Config."""

    def __init__(self, url: str, **options: Any) -> None:
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise SourceUnavailable(f"{url}: write s3://bucket/prefix")
        self._url = url.rstrip("/")
        self._prefix = parts.path.strip("/")
        if str(options.get("endpoint", "")).startswith("http://"):
            options.setdefault("client_options", {"allow_http": True})
        retry: Any = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=20)}
        try:
            self._store = S3Store(parts.netloc, retry_config=retry, **options)
        except (BaseError, ValueError) as error:
            raise SourceUnavailable(f"{url}: {error}") from error

    async def listing(self) -> Listing:
        try:
            if self._prefix.endswith(".gguf"):
                meta: Any = await obstore.head_async(self._store, self._prefix)
                self._prefix, _, name = self._prefix.rpartition("/")
                return Listing(self._url, (RemoteFile(name, meta["size"], meta["e_tag"] or ""),))
            found: dict[str, RemoteFile] = {}
            async for batch in obstore.list(self._store, prefix=self._prefix or None):
                for meta in batch:
                    name = meta["path"][len(self._prefix) :].lstrip("/")
                    if check_file_name(name) is None:
                        found[name] = RemoteFile(name, meta["size"], meta["e_tag"] or str(meta["last_modified"]))
        except (BaseError, OSError) as error:
            raise self._typed(error, self._prefix) from error
        try:
            names = choose_files(sorted(found))
        except SourceUnavailable as error:
            raise SourceUnavailable(f"{self._url}: {error}") from error
        return Listing(self._url, tuple(found[name] for name in names))

    async def look(self, name: str) -> RemoteFile | None:
        key = self._key(name)
        try:
            meta: Any = await obstore.head_async(self._store, key)
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise self._typed(error, key) from error
        return RemoteFile(name, meta["size"], meta["e_tag"] or str(meta["last_modified"]))

    async def read(self, file: RemoteFile, start: int, stop: int) -> AsyncIterator[bytes]:
        if start == stop:
            return
        options: Any = {"range": (start, stop)}
        if file.version.startswith('"'):
            options["if_match"] = file.version
        key = self._key(file.name)
        try:
            result = await obstore.get_async(self._store, key, options=options)
            if result.meta["size"] != file.size:
                raise SourceChanged(f"{self._url}/{file.name}: is no longer {file.size} bytes long")
            async for piece in result.stream():
                yield bytes(piece)
        except (BaseError, OSError) as error:
            raise self._typed(error, key) from error

    async def close(self) -> None:
        pass

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _typed(self, error: Exception, key: str) -> Exception:
        if isinstance(error, PreconditionError):
            return SourceChanged(f"{self._url}: {key} was replaced while it was downloaded")
        if isinstance(error, NotFoundError | FileNotFoundError):
            return SourceUnavailable(f"{self._url}: {key} is not there")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError):
            return SourceUnavailable(f"{self._url}: access is denied")
        return Transient(f"{type(error).__name__}: {str(error)[:300]}")
