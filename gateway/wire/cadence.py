"""When a waiting client gets which sign of life. Time is passed in; nothing here waits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from gateway.wire.chunks import Chunks, comment
from rewarm.messages import Progress
from rewarm.states import NOT_BEGUN

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds; see ``HoldingConfig`` for what each one is about."""

    stream_status_after_s: float = 2.0
    comment_every_s: float = 4.0
    chunk_first_after_s: float = 20.0
    chunk_every_s: float = 45.0
    plain_status_after_s: float = 15.0
    pad_every_s: float = 10.0
    change_every_s: float = 1.0  # a changed fraction is shown at once, but not more often than this


class Cadence(Protocol):
    """One client's schedule. The first sign commits the status line: until then a failure gets its true status."""

    def due(self) -> float:
        """When :meth:`poll` may have something to say."""

    def poll(self, now: float, progress: Progress | None, note: str) -> bytes:
        """What to send now, if anything. ``note`` is a word for the state, shown where there is no progress."""


class StreamCadence:
    """Comments by default; or the same as no-op chunks that carry a ``rewarm`` object."""

    __slots__ = ("_chunks", "_last", "_next_chunk", "_objects", "_seen", "_timings", "_top")

    def __init__(self, started: float, timings: Timings, chunks: Chunks, mode: Literal["comments", "chunks"]) -> None:
        self._timings = timings
        self._chunks = chunks
        self._objects = mode == "chunks"
        # Before the first sign this stands for the moment that makes it due in time.
        self._last = started + timings.stream_status_after_s - timings.change_every_s
        self._next_chunk = started + timings.chunk_first_after_s
        self._seen: object = None
        self._top = 0.0

    def due(self) -> float:
        return self._last + self._timings.change_every_s

    def poll(self, now: float, progress: Progress | None, note: str) -> bytes:
        timings = self._timings
        if now < self.due():
            return b""
        if progress is not None:
            progress = self._honest(progress)
        seen: object = note
        if progress is not None:
            told = progress.message if progress.phase in NOT_BEGUN else ""
            seen = (progress.phase, progress.fraction, progress.bytes_done, progress.queue_position, told)
        if seen == self._seen and now < self._last + timings.comment_every_s and now < self._next_chunk:
            return b""
        self._last, self._seen = now, seen
        if self._objects:
            return self._chunks.progress(progress, note)
        if now >= self._next_chunk:
            self._next_chunk = now + timings.chunk_every_s
            # The comment belongs to the chunk's event: clients that show comments miss nothing.
            return comment(progress, note) + self._chunks.no_op()
        return comment(progress, note)

    def _honest(self, progress: Progress) -> Progress:
        """A new attempt starts at zero; to the client the fraction never goes back."""
        if progress.fraction >= self._top:
            self._top = progress.fraction
            return progress
        return msgspec.structs.replace(progress, fraction=self._top)


class PlainCadence:
    """Whitespace before a JSON body, which every client accepts."""

    __slots__ = ("_next", "_pad_every_s")

    def __init__(self, started: float, timings: Timings) -> None:
        self._next = started + timings.plain_status_after_s
        self._pad_every_s = timings.pad_every_s

    def due(self) -> float:
        return self._next

    def poll(self, now: float, progress: Progress | None, note: str) -> bytes:
        if now < self._next:
            return b""
        self._next = now + self._pad_every_s
        return b" "


class SilentCadence:
    """``X-Rewarm-Progress: none``: true statuses to the end, whatever the client's timeouts make of it."""

    __slots__ = ()

    def due(self) -> float:
        return NEVER

    def poll(self, now: float, progress: Progress | None, note: str) -> bytes:
        return b""
