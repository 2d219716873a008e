"""What a source of weights is: a list of files, and any part of any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from snapshots.digests import blake3_hex
from snapshots.errors import SourceUnavailable
from snapshots.extras import is_extra_name
from snapshots.manifest import MANIFEST_NAME


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str  # relative, checked
    size: int
    version: str = ""  # ETag or time: changes with the bytes; "" where the source has none
    ranges: bool = True  # whether parts of it can be asked for


@dataclass(frozen=True, slots=True)
class Listing:
    location: str
    files: tuple[RemoteFile, ...]

    @property
    def seen(self) -> str:
        """A digest of names, sizes and versions: the same as long as nothing changes there."""
        return blake3_hex([msgspec.json.encode(sorted((f.name, f.size, f.version) for f in self.files))])

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def find(self, name: str) -> RemoteFile | None:
        return next((file for file in self.files if file.name == name), None)


class Transient(Exception):
    """It may work the next time. ``after_s``: when the source says so itself."""

    def __init__(self, problem: str, after_s: float | None = None) -> None:
        super().__init__(problem)
        self.after_s = after_s


class Source(Protocol):
    async def listing(self) -> Listing:
        """What there is to take. Raise SourceUnavailable, or Transient."""

    async def look(self, name: str) -> RemoteFile | None:
        """One file by its name, or None where it is not."""

    def read(self, file: RemoteFile, start: int, stop: int) -> AsyncIterator[bytes]:
        """The bytes from ``start`` to before ``stop``. Raise Transient, SourceUnavailable, or SourceChanged when it
        is no longer the file that was listed. A file without ranges is read from 0 to its end only."""

    async def close(self) -> None: ...


def choose_files(names: Sequence[str]) -> list[str]:
    """Of all names in a folder, those to take: a rewarm snapshot whole, else safetensors and what belongs to them,
    else a single GGUF file. Raise SourceUnavailable when there is nothing of the kind."""
    if MANIFEST_NAME in names:
        return [MANIFEST_NAME]
    weights = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    if weights:
        index = [name for name in names if name == "model.safetensors.index.json"]
        return sorted(weights + index + [name for name in names if is_extra_name(name)])
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if len(gguf) == 1:
        return gguf
    if gguf:
        raise SourceUnavailable(f"there are {len(gguf)} GGUF files: name one of them")
    raise SourceUnavailable("there is neither a snapshot nor a safetensors or GGUF file")
