"""The one thread that computes. It gathers what comes within the window into a batch, and steps its batches in turn.

A request that comes while others are generating does not wait for their end: its batch takes turns with theirs. What
cannot run now, because the cache has no room for it, waits in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rewarm.errors import EngineFailed
from worker.engines.torch.batch import Batch
from worker.engines.torch.embedding import embed, portions
from worker.engines.torch.model import Skeleton
from worker.engines.torch.rows import Embedding, Event, Events, Failed, Generation, Row, Said

_MOST_FAILURES = 3
"""In a row, after which the engine counts as broken."""

_log = logging.getLogger("rewarm.worker.torch")

Work = Generation | Embedding
OnBatch = Callable[[int], None]
"""Told how many rows share the forward passes of a batch that begins."""


class Runner:
    """``window_s``: how long a request waits for others while nothing runs; ``full``: requests that need not wait for
    more; ``room``: positions that the cache holds in all (None: no bound)."""

    def __init__(
        self,
        model: Skeleton,
        *,
        window_s: float,
        full: int,
        threads: int,
        room: int | None = None,
        on_batch: OnBatch = lambda rows: None,
    ) -> None:
        self._model = model
        self._window_s = window_s
        self._full = full
        self._threads = threads
        self._room = room
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._batches: list[Batch] = []
        self._closing = False
        self._failures = 0
        self.broken: asyncio.Future[str] = self._loop.create_future()
        """Set to a message when nothing more can be expected of this engine."""
        self._thread = threading.Thread(target=self._main, name="torch-runner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """No more steps. Does not wait for the one that runs."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def submit(self, work: Work) -> None:
        """Its events come through the rows' queues, an embedding's vectors through its future. After ``work.cancel()``
        every row still tells its end, within a step."""
        work.arrived = time.monotonic()
        with self._changed:
            self._waiting.append(work)
            self._changed.notify()

    # -- the thread

    def _main(self) -> None:
        try:
            torch.set_num_threads(self._threads)
            with torch.inference_mode():
                while self._gather():
                    for batch in list(self._batches):
                        self._step(batch)
        except BaseException as error:  # noqa: BLE001 -- the host has to hear of it, whatever it was
            _log.exception("event=runner-ended")
            self._call(self._break, f"the thread that computes ended: {type(error).__name__}: {error}")

    def _gather(self) -> bool:
        """Move waiting requests into batches; wait where there is nothing else to do. False: closing."""
        with self._changed:
            while not self._closing and not self._batches and not self._waiting:
                self._changed.wait()
            while not self._closing and self._waiting and len(self._waiting) < self._full:
                left = self._waiting[0].arrived + self._window_s - time.monotonic()
                if left <= 0:
                    break
                if self._batches:
                    return True  # others have steps to make meanwhile
                self._changed.wait(left)
            if self._closing:
                return False
            taken = self._take()
        generations = [work for work in taken if isinstance(work, Generation)]
        if generations:
            self._begin([row for work in generations for row in work.rows])
        self._embed([work for work in taken if isinstance(work, Embedding)])
        return True

    def _take(self) -> list[Work]:
        """In order, as long as there is room; what runs alone always has it."""
        taken: list[Work] = []
        used = sum(batch.size for batch in self._batches)
        rows: list[Row] = []
        while self._waiting:
            work = self._waiting[0]
            if isinstance(work, Generation) and self._room is not None:
                together = [*rows, *work.rows]
                if used + _size(together) > self._room and (self._batches or rows):
                    break
                rows = together
            taken.append(self._waiting.popleft())
        return taken

    def _begin(self, rows: Sequence[Row]) -> None:
        alive = [row for row in rows if not row.cancelled]
        self._tell([(row, _cancelled(row)) for row in rows if row.cancelled])
        if not alive:
            return
        self._on_batch(len(alive))
        try:
            self._batches.append(Batch(self._model, alive))
        except Exception as error:  # noqa: BLE001 -- out of memory, for instance: theirs, not the engine's end
            self._failed(alive, error)

    def _step(self, batch: Batch) -> None:
        try:
            events, kept = self._advance(batch)
            batch.keep(kept)
        except Exception as error:  # noqa: BLE001 -- as above
            self._batches.remove(batch)
            self._failed(batch.rows, error)
            return
        if not batch.rows:
            self._batches.remove(batch)
        self._tell(events)
        self._failures = 0

    def _advance(self, batch: Batch) -> tuple[list[tuple[Row, Event]], list[int]]:
        """Events of one step, and the rows that go on. Those that were cancelled are let go before it."""
        self._tell([(row, _cancelled(row)) for row in batch.rows if row.cancelled])
        batch.keep([n for n, row in enumerate(batch.rows) if not row.cancelled])
        if not batch.rows:
            return [], []
        events: list[tuple[Row, Event]] = []
        kept = []
        for n, token in enumerate(batch.step()):
            said = batch.rows[n].take(token)
            if said.text or said.finish is not None:
                events.append((batch.rows[n], said))
            if said.finish is None:
                kept.append(n)
        return events, kept

    def _embed(self, works: Sequence[Embedding]) -> None:
        alive = [work for work in works if not work.cancelled]
        for work in works:
            if work.cancelled:
                self._call(_set, work.result, [])
        if not alive:
            return
        inputs = [tokens for work in alive for tokens in work.inputs]
        vectors: list[list[float]] = [[]] * len(inputs)
        self._on_batch(len(inputs))
        try:
            for portion in portions(inputs):
                if all(work.cancelled for work in alive) or self._closing:
                    break
                for n, vector in zip(portion, embed(self._model, [inputs[n] for n in portion]), strict=True):
                    vectors[n] = vector
        except Exception as error:  # noqa: BLE001 -- as above
            failure = self._failure(error)
            for work in alive:
                self._call(_set_error, work.result, failure)
            return
        at = 0
        for work in alive:
            self._call(_set, work.result, vectors[at : at + len(work.inputs)])
            at += len(work.inputs)
        self._failures = 0

    def _failed(self, rows: Sequence[Row], error: Exception) -> None:
        failure = self._failure(error)
        self._tell([(row, Failed(failure)) for row in rows])

    def _failure(self, error: Exception) -> EngineFailed:
        _log.error("event=batch-failed", exc_info=error)
        self._failures += 1
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if self._failures >= _MOST_FAILURES:
            self._call(self._break, f"{self._failures} batches in a row failed, the last with {words}")
        return EngineFailed(f"the forward pass failed: {words}")

    def _break(self, message: str) -> None:
        if not self.broken.done():
            self.broken.set_result(message)

    def _tell(self, events: Sequence[tuple[Row, Event]]) -> None:
        """One wake-up of the loop for a whole step."""
        if events:
            self._call(_deliver, [(row.events, event) for row, event in events])

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, *args)


def _size(rows: Sequence[Row]) -> int:
    return len(rows) * (max(len(row.prompt) for row in rows) + max(row.most for row in rows)) if rows else 0


def _cancelled(row: Row) -> Said:
    return Said(row.index, "", len(row.said), "cancelled")


def _deliver(events: Sequence[tuple[Events, Event]]) -> None:
    for queue, event in events:
        queue.put_nowait(event)


def _set(future: asyncio.Future[list[list[float]]], value: list[list[float]]) -> None:
    if not future.done():
        future.set_result(value)


def _set_error(future: asyncio.Future[list[list[float]]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
