"""The output of an attempt on its way to Redis, gathered into chunks by time and size. Pure: ``now`` is injected (s).

A write a token would make Redis the slowest part of a job, and its stream the largest.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK_AFTER_S = 0.1
CHUNK_BYTES = 8 * 1024
BUFFER_BYTES = 1024 * 1024
"""Kept for a Redis that does not answer. When it is full, reading from the engine pauses."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """``tokens`` is the count since the attempt began, with this chunk's included."""

    seq: int  # 1, 2, … within the attempt
    data: bytes
    tokens: int


class Batch:
    """What has not been written yet. Events stay whole: a chunk is cut between two of them."""

    def __init__(
        self, *, after_s: float = CHUNK_AFTER_S, chunk_bytes: int = CHUNK_BYTES, limit_bytes: int = BUFFER_BYTES
    ) -> None:
        self._after_s = after_s
        self._chunk_bytes = chunk_bytes
        self._limit_bytes = limit_bytes
        self._events: list[bytes] = []
        self._tokens = 0
        self._since = 0.0
        self._seq = 0
        self._closed = False
        self.size = 0

    def add(self, event: bytes, tokens: int, now: float) -> None:
        if not self._events:
            self._since = now
        self._events.append(event)
        self.size += len(event)
        self._tokens = tokens

    def close(self) -> None:
        """Nothing more comes: what is here is due."""
        self._closed = True

    @property
    def full(self) -> bool:
        return self.size >= self._limit_bytes

    @property
    def closed(self) -> bool:
        return self._closed

    def due_in_s(self, now: float) -> float | None:
        """Seconds until a chunk should be written, 0 for now; None while there is nothing."""
        if not self._events:
            return None
        if self._closed or self.size >= self._chunk_bytes:
            return 0.0
        return max(0.0, self._since + self._after_s - now)

    def take(self) -> Chunk:
        """Everything that waits, as the next chunk. Only when something does."""
        data = b"".join(self._events)
        self._events.clear()
        self.size = 0
        self._seq += 1
        return Chunk(self._seq, data, self._tokens)
