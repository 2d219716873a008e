"""``GET /v1/jobs/{id}/events``: the wait, the load, the output and the end of a job as server-sent events.

Our own events have names (``status``, ``restart``, ``end``), the engine's are sent as they are, each with an id. Only
ids move a reader on: after a cut it sends the last one, and is given everything after it and nothing twice. What has no
id (``status``, ``end``) says how things stand now, so that to hear it again is no news.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from fleet import Chunk
from gateway.http import Request, StreamResponse
from gateway.jobs.cursor import Cursor, split_events, tag_of
from gateway.jobs.desk import JobDesk
from gateway.jobs.watching import Watched
from gateway.reply import EVENTS, STREAM_HEADERS
from rewarm.errors import ForeignEventId, QueueUnavailable
from rewarm.jobs import TERMINAL, Job

KEEP_ALIVE_S = 10.0
_LOOK_S = 1.0  # without news, to see whether the gateway stops or a comment is due
_STATUS_EVERY_S = 1.0
_AT_ONCE = ("status", "queue_position", "attempt", "cancel_requested", "served_model")
_IN_TIME = (*_AT_ONCE, "progress", "tokens")
"""A change of these is told, of the first ones and of the phase at once, of the others every second."""

_dump = msgspec.json.Encoder().encode


class EventStream:
    """One reader of one job."""

    def __init__(self, desk: JobDesk, job: Job, cursor: Cursor) -> None:
        self._desk = desk
        self._id = job.spec.id
        self._tag = tag_of(job.spec.id)
        self._cursor = cursor
        self._told: dict[str, Any] = {}
        self._told_at = 0.0
        self._wrote_at = 0.0
        self._response = StreamResponse(status=200, headers={**STREAM_HEADERS, "Content-Type": EVENTS})

    async def run(self, request: Request, job: Job) -> StreamResponse:
        """Until the job's end, or this gateway's. Raise ForeignEventId before it begins, ConnectionError when the
        client is gone."""
        response = self._response
        void = await self._beyond(job)
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        if void:
            await self._restart(job.attempt, job)
        with self._desk.watch.watch(self._id, job) as watched:
            while not watched.gone and not self._desk.watch.leaving:
                if watched.job is not None and await self._step(watched.job):
                    break
                await self._rest(watched)
        await response.write_eof()
        return response

    async def _beyond(self, job: Job) -> bool:
        """Whether the reader has had what Redis does not have. Raise ForeignEventId where that cannot be.

        While the job runs it can: Redis may have come back without its last second. What is told from then on does not
        go with what the reader has, so that it must begin anew.
        """
        cursor = self._cursor
        if cursor.attempt != job.attempt or not cursor.seq:
            return False  # of an attempt that was given up: it is told so
        events = self._desk.jobs.events
        chunks = await events(self._id, f"{cursor.attempt}-{cursor.seq - 1}", limit=1)
        if any(not chunk.end for chunk in chunks):
            return False
        if job.state not in TERMINAL:
            return True
        if await events(self._id, limit=1):
            raise ForeignEventId(f"{self._id} gave no event so late", param="Last-Event-ID")
        return False  # its output is kept no longer

    async def _step(self, job: Job) -> bool:
        """Send what is new. True when that was the end."""
        # The job was read before its output is: when it had ended by then, so had its output.
        await self._status(job)
        try:
            lost = await self._output(job)
        except QueueUnavailable:
            return False
        if job.state not in TERMINAL:
            return False
        told = self._desk.showing.describe(job)
        if lost:
            told["output_gone"] = True  # half an hour after the end; the result is still there
        await self._event("end", told)
        return True

    async def _status(self, job: Job) -> None:
        if job.state in TERMINAL:
            return
        described = self._desk.showing.describe(job)
        told = {name: described[name] for name in _IN_TIME}
        old = self._told
        if told == old:
            return
        now = asyncio.get_running_loop().time()
        urgent = not old or old["progress"]["phase"] != told["progress"]["phase"]
        if urgent or any(told[name] != old[name] for name in _AT_ONCE) or now >= self._told_at + _STATUS_EVERY_S:
            self._told, self._told_at = told, now
            await self._event("status", described)

    async def _output(self, job: Job) -> bool:
        """What the engine said since. True where some is missing, because it is kept no longer. Raise
        QueueUnavailable."""
        if self._cursor.attempt < job.attempt:
            if self._cursor.attempt:
                await self._restart(job.attempt, job)
            self._cursor = Cursor(job.attempt)  # what earlier attempts have said is void
        there = Cursor(job.attempt, job.chunks)
        found = False
        while self._cursor < there or self._cursor.given or job.state in TERMINAL:
            chunks = await self._desk.jobs.events(self._id, self._cursor.after, block_ms=0)
            found = found or any(not chunk.end for chunk in chunks)
            moved = False
            for chunk in chunks:
                moved = await self._chunk(chunk, job) or moved
            if not moved:
                break
        return not found and self._cursor < there

    async def _chunk(self, chunk: Chunk, job: Job) -> bool:
        """True where the reader has moved on."""
        cursor = self._cursor
        if chunk.end or chunk.attempt < cursor.attempt:
            return False  # of an attempt that was given up
        if chunk.attempt > cursor.attempt:
            if cursor.attempt:
                await self._restart(chunk.attempt, job)
            cursor = Cursor(chunk.attempt)
        events = split_events(chunk.data)
        skip = cursor.given if chunk.seq == cursor.seq else 0
        out = []
        for n, event in enumerate(events[skip:], skip + 1):
            cursor = Cursor(chunk.attempt, chunk.seq, n if n < len(events) else 0)
            out.append(b"id: %b\n%b\n\n" % (cursor.event_id(self._tag).encode(), event))
        self._cursor = Cursor(chunk.attempt, chunk.seq)
        if out:
            await self._write(b"".join(out))
        return True

    async def _restart(self, attempt: int, job: Job) -> None:
        """What the reader has of the last attempt is void: the answer begins anew."""
        self._cursor = Cursor(attempt)
        data = {"attempt": attempt, "reason": job.error_message}
        await self._write(
            b"event: restart\nid: %b\ndata: %b\n\n" % (self._cursor.event_id(self._tag).encode(), _dump(data))
        )

    async def _rest(self, watched: Watched) -> None:
        await watched.news(_LOOK_S)
        if asyncio.get_running_loop().time() > self._wrote_at + KEEP_ALIVE_S:
            await self._write(b": keep-alive\n")  # no blank line: some clients would take that for an event

    async def _event(self, name: str, data: dict[str, Any]) -> None:
        await self._write(b"event: %b\ndata: %b\n\n" % (name.encode(), _dump(data)))

    async def _write(self, data: bytes) -> None:
        self._wrote_at = asyncio.get_running_loop().time()
        await self._response.write(data)
