"""Which chunks of a download are here: one line for each, with its digest. What the lines say is checked before it
counts.

Nothing has to be synced in any order: a line whose chunk did not reach the disk is found out, because the chunk's
bytes do not have its digest, and a torn last line is no line.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from snapshots.digests import CHUNK_DIGEST_BYTES, chunk_digest


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int
    version: str
    chunk_bytes: int


class Journal:
    """Of one file that lies at ``data``, reserved to its full size."""

    def __init__(self, path: Path, data: Path, size: int, version: str, chunk_bytes: int) -> None:
        self._path, self._data = path, data
        self._head = _Head(size, version, chunk_bytes)
        self._descriptor = -1

    @property
    def chunks(self) -> int:
        return -(-self._head.size // self._head.chunk_bytes)

    def open(self, expected: list[bytes] | None = None) -> set[int]:
        """The chunks that are here, read and compared with what the journal, and ``expected``, say of them.

        A journal of another version of the file is thrown away.
        """
        claimed = self._read()
        verified: dict[int, bytes] = {}
        if claimed and self._data.is_file():
            with self._data.open("rb") as file:
                for index, digest in claimed.items():
                    file.seek(index * self._head.chunk_bytes)
                    length = min(self._head.chunk_bytes, self._head.size - index * self._head.chunk_bytes)
                    data = file.read(length)
                    found = chunk_digest(data)
                    if len(data) == length and found == digest and (expected is None or expected[index] == found):
                        verified[index] = digest
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o644)
        os.write(self._descriptor, msgspec.json.encode(self._head) + b"\n")
        for index, digest in verified.items():
            self.add(index, digest)
        return set(verified)

    def add(self, index: int, digest: bytes) -> None:
        """After the chunk was written."""
        os.write(self._descriptor, f"{index} {digest.hex()}\n".encode())

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> dict[int, bytes]:
        try:
            head, *lines = self._path.read_bytes().split(b"\n")
            if msgspec.json.decode(head, type=_Head) != self._head:
                return {}
        except (OSError, msgspec.MsgspecError):
            return {}
        claimed: dict[int, bytes] = {}
        for line in lines[:-1]:  # the last one is empty, or torn
            try:
                number, digest = line.split(b" ")
                index, raw = int(number), bytes.fromhex(digest.decode("ascii"))
            except (ValueError, UnicodeDecodeError):
                continue
            if 0 <= index < self.chunks and len(raw) == CHUNK_DIGEST_BYTES:
                claimed[index] = raw
        return claimed
