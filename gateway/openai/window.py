"""The lines of a batch that are at work: those right behind the cursor, and how each one stands."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice

from fleet import PIECE_BYTES, Files, line_job_id
from gateway.openai.lines import Bad, CheckLine, Line, Splitter, number_of, read_line
from rewarm.files import Batch, StoredFile
from rewarm.jobs import TERMINAL, Job

MAX_LINES = 1000
MAX_BYTES = 8 << 20
"""Of the bodies. More would only lie in Redis and wait: engines never run out of work with so many lines ahead."""

_LINES_AT_ONCE = 50


class Place:
    """``job`` is the last reading; ``known`` once it has been looked for."""

    __slots__ = ("cancelled", "id", "job", "known", "line")

    def __init__(self, line: Line | Bad, id_: str) -> None:
        self.line = line
        self.id = id_
        self.job: Job | None = None
        self.known = False
        self.cancelled = False  # asked for, by us

    @property
    def ended(self) -> bool:
        return self.job is not None and self.job.state in TERMINAL

    @property
    def size(self) -> int:
        return len(self.line.body) if isinstance(self.line, Line) else 0


class Window:
    def __init__(self, batch: Batch, file: StoredFile, files: Files) -> None:
        self.line = batch.line  # the cursor that this window belongs to
        self._batch = batch.spec
        self._file = file
        self._files = files
        self._refused = number_of(batch.errors)
        self._splitter = Splitter(number=batch.line, offset=batch.offset)
        self._read = batch.offset  # bytes of the file
        self._raw: deque[tuple[int, int, bytes]] = deque()
        self._places: deque[Place] = deque()
        self._bytes = 0
        self._all_read = False

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def empty(self) -> bool:
        """Nothing is left of the input."""
        return self._all_read and not self._raw and not self._places

    def unfinished(self, limit: int) -> list[Place]:
        """The first ``limit`` whose job is there and has not ended."""
        return list(islice((p for p in self._places if p.job is not None and not p.ended), limit))

    async def fill(self, max_body: int, check: CheckLine) -> None:
        """Take lines in until there are enough."""
        taken = 0
        while len(self._places) < MAX_LINES and self._bytes < MAX_BYTES:
            if not self._raw and not await self._more():
                return
            while self._raw and len(self._places) < MAX_LINES and self._bytes < MAX_BYTES:
                self._take(*self._raw.popleft(), max_body, check)
                taken += 1
                if taken % _LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _take(self, number: int, end: int, raw: bytes, max_body: int, check: CheckLine) -> None:
        line = read_line(number, end, raw, endpoint=self._batch.endpoint, max_body=max_body, check=check)
        refused = self._refused.get(number)
        if refused is not None and isinstance(line, Line):
            line = Bad(number, end, refused, line.custom_id)
        place = Place(line, line_job_id(self._batch.id, number))
        self._bytes += place.size
        self._places.append(place)

    async def _more(self) -> bool:
        """The next piece of the file; False when there is none."""
        if self._all_read:
            return False
        got = 0
        async for piece in self._files.read(self._file, self._read, self._read + PIECE_BYTES):
            got += len(piece)
            self._raw.extend(self._splitter.feed(piece))
        self._read += got
        if not got or self._read >= self._file.bytes:
            self._all_read = True
            self._raw.extend(self._splitter.finish())
        return bool(self._raw) or not self._all_read

    def drop(self, count: int) -> list[Place]:
        """The first ``count`` are written; the cursor is behind them."""
        gone = [self._places.popleft() for _ in range(count)]
        self._bytes -= sum(place.size for place in gone)
        self.line = gone[-1].line.number
        return gone
