"""A folder on an http(s) server, or a single GGUF file. There is no listing over HTTP: the known names are
asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from urllib.parse import quote

import aiohttp

from snapshots.checkpoint import INDEX_FILE
from snapshots.errors import SourceChanged, SourceUnavailable
from snapshots.manifest import MANIFEST_NAME
from snapshots.names import check_file_name
from snapshots.sources.base import Listing, RemoteFile, Transient

EXTRAS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "quantize_config.json",
    "quantization_config.json",
)
"""What a hub's repositories hold beside weights, as far as engines read it."""

_CONNECT_S, _SILENCE_S = 10.0, 60.0
_MAX_INDEX_BYTES = 64 * 2**20
_PIECE_BYTES = 256 * 1024
_TRANSIENT = frozenset((408, 425, 429, 500, 502, 503, 504))


class HttpSource:
    """``url`` is a folder (the names are put behind it) or ends in ``.gguf``. ``headers`` for a token, if one is
    needed; they do not follow a redirect to another host."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {
            "Accept-Encoding": "identity",
            **(headers or {}),
        }  # sizes and ranges are of the bytes themselves
        self._session: aiohttp.ClientSession | None = None

    async def listing(self) -> Listing:
        if self._url.endswith(".gguf"):
            self._url, _, name = self._url.rpartition("/")
            return Listing(f"{self._url}/{name}", (await self._required(name),))
        manifest = await self.look(MANIFEST_NAME)
        if manifest is not None:
            return Listing(self._url, (manifest,))
        config = await self._required("config.json")
        index = await self.look(INDEX_FILE)
        names = [*(await self._shards(index) if index else ["model.safetensors"])]
        weights = [await self._required(name) for name in names]
        extras = await asyncio.gather(*(self.look(name) for name in EXTRAS if name != "config.json"))
        found = [config, *([index] if index else []), *weights, *(file for file in extras if file is not None)]
        return Listing(self._url, tuple(sorted(found, key=lambda file: file.name)))

    async def read(self, file: RemoteFile, start: int, stop: int) -> AsyncIterator[bytes]:
        if start == stop:
            return
        headers = {}
        if file.ranges:
            headers["Range"] = f"bytes={start}-{stop - 1}"
            if file.version.startswith('"'):
                headers["If-Range"] = file.version  # a server that has another file by now sends all of it
        try:
            async with self._client().get(self._address(file.name), headers=headers) as response:
                if response.status == 416:
                    raise SourceChanged(f"{response.url}: is no longer {file.size} bytes long")
                self._check(response)
                if file.version and _version(response) not in ("", file.version):
                    raise SourceChanged(f"{response.url}: was replaced while it was downloaded")
                if file.ranges:
                    self._check_range(response, file, start, stop)
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    yield piece
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Transient(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def look(self, name: str) -> RemoteFile | None:
        """Ask for the first byte: what comes back tells size, version and whether ranges work. None: not there."""
        headers = {"Range": "bytes=0-0"}
        try:
            async with self._client().get(self._address(name), headers=headers) as response:
                if response.status in (404, 410):
                    return None
                if response.status == 416:  # an empty file has no first byte
                    return RemoteFile(name, 0, _version(response))
                self._check(response)
                if response.status == 206:
                    total = response.headers.get("Content-Range", "").rpartition("/")[2]
                    if not total.isdigit():
                        raise SourceUnavailable(f"{response.url}: does not say how large it is")
                    return RemoteFile(name, int(total), _version(response))
                if response.content_length is None:
                    raise SourceUnavailable(f"{response.url}: does not say how large it is")
                return RemoteFile(name, response.content_length, _version(response), ranges=False)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Transient(f"{type(error).__name__}: {error}") from error

    async def _required(self, name: str) -> RemoteFile:
        found = await self.look(name)
        if found is None:
            raise SourceUnavailable(f"{self._address(name)}: is not there")
        return found

    async def _shards(self, index: RemoteFile) -> list[str]:
        if index.size > _MAX_INDEX_BYTES:
            raise SourceUnavailable(f"{self._address(index.name)}: has {index.size} bytes, no index")
        raw = b"".join([piece async for piece in self.read(index, 0, index.size)])
        try:
            names = sorted(set(json.loads(raw)["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SourceUnavailable(f"{self._address(index.name)}: is no index of safetensors files") from error
        for name in names:
            if not isinstance(name, str) or "/" in name or check_file_name(name) is not None:
                raise SourceUnavailable(f"{self._address(index.name)}: names {str(name)[:100]!r}")
        return names

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers, auto_decompress=False)
        return self._session

    def _address(self, name: str) -> str:
        return f"{self._url}/{quote(name)}"

    @staticmethod
    def _check(response: aiohttp.ClientResponse) -> None:
        if response.status in _TRANSIENT:
            after = response.headers.get("Retry-After", "")
            raise Transient(f"{response.url}: HTTP {response.status}", float(after) if after.isdigit() else None)
        if response.status not in (200, 206):
            raise SourceUnavailable(f"{response.url}: HTTP {response.status}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise SourceUnavailable(f"{response.url}: comes compressed, although that was not asked for")

    @staticmethod
    def _check_range(response: aiohttp.ClientResponse, file: RemoteFile, start: int, stop: int) -> None:
        if response.status == 200:
            if (start, stop) == (0, file.size):
                return
            raise SourceChanged(f"{response.url}: the server sent all of it: it was replaced, or ranges ended")
        said = response.headers.get("Content-Range", "")
        if said != f"bytes {start}-{stop - 1}/{file.size}":
            raise SourceChanged(f"{response.url}: sent {said[:80]!r}, asked for {start}-{stop - 1} of {file.size}")


def _version(response: aiohttp.ClientResponse) -> str:
    """A strong ETag, else the time of the last change. Weak ones do not promise the same bytes."""
    etag = response.headers.get("ETag", "")
    return etag if etag.startswith('"') else response.headers.get("Last-Modified", "")
