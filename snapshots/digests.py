"""The two digests: xxh3-128 for every chunk on every restore, BLAKE3 for content addresses.

xxh3 is not cryptographic and does not have to be: it finds flipped bits and misplaced blocks at the cost of reading
memory once. BLAKE3 is, because a content address is compared between machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from mmap import mmap

import blake3
import xxhash

Buffer = bytes | bytearray | memoryview | mmap

CHUNK_BYTES = 4 * 2**20
"""What is read at once and what a digest covers: enough for four threads with O_DIRECT to reach a disk's limit."""

CHUNK_DIGEST_BYTES = 16


def chunk_digest(data: Buffer) -> bytes:
    """16 bytes. Hashing releases the interpreter's lock, so that threads overlap."""
    return xxhash.xxh3_128_digest(data)


class ChunkDigest:
    """:func:`chunk_digest` in pieces, each while it is still in the processor's cache."""

    def __init__(self) -> None:
        self._hasher = xxhash.xxh3_128()

    def update(self, data: Buffer) -> None:
        self._hasher.update(data)

    def digest(self) -> bytes:
        return self._hasher.digest()


class ContentHasher:
    """BLAKE3 over everything that was put in."""

    def __init__(self) -> None:
        self._hasher = blake3.blake3()

    def update(self, data: Buffer) -> None:
        self._hasher.update(data)

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


class ChunkHasher:
    """Cuts a stream of any pieces into chunks of ``chunk_bytes`` and digests each; BLAKE3 over all of it besides."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._room = chunk_bytes
        self._chunk = xxhash.xxh3_128()
        self._content = ContentHasher()
        self._digests: list[bytes] = []

    def update(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._content.update(view)
        while len(view) >= self._room:
            self._chunk.update(view[: self._room])
            self._digests.append(self._chunk.digest())
            self._chunk = xxhash.xxh3_128()
            view = view[self._room :]
            self._room = self._chunk_bytes
        if len(view):
            self._chunk.update(view)
            self._room -= len(view)

    def finish(self) -> tuple[bytes, str]:
        """All chunk digests in a row, and the BLAKE3 of the whole in hex."""
        if self._room < self._chunk_bytes:
            self._digests.append(self._chunk.digest())
            self._room = self._chunk_bytes
        return b"".join(self._digests), self._content.hexdigest()


def blake3_hex(parts: Iterable[Buffer]) -> str:
    hasher = ContentHasher()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()
