"""The events of one response to one client, from any number on, to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from gateway.http import Request, StreamResponse
from gateway.jobs import JobDesk
from gateway.openai.numbering import Numbering
from gateway.openai.responses_object import final_event
from gateway.reply import EVENTS, STREAM_HEADERS
from gateway.wire import TypedChunks, comment
from rewarm.errors import QueueUnavailable, ResponseNotFound, RewarmError, ShuttingDown
from rewarm.jobs import TERMINAL, Job
from rewarm.messages import Progress

COMMENT_EVERY_S = 4.0
_LOOK_S = 1.0  # without news, to see whether the gateway stops or a comment is due

Shown = Callable[[Job], Awaitable[Mapping[str, Any]]]


class Following:
    """``shown`` makes the Response object of a job. Numbers up to ``starting_after`` are left out."""

    def __init__(self, desk: JobDesk, job: Job, response: Mapping[str, Any], shown: Shown, starting_after: int) -> None:
        self._desk = desk
        self._id = job.spec.id
        self._shown = shown
        self._after = starting_after
        self._chunk = "0-0"  # the last one that was read
        self._numbering = Numbering({k: v for k, v in response.items() if k != "rewarm"})
        self._wrote_at = 0.0
        self._response = StreamResponse(status=200, headers={**STREAM_HEADERS, "Content-Type": EVENTS})

    async def run(self, request: Request, job: Job) -> StreamResponse:
        """Raise ConnectionError when the client is gone."""
        response = self._response
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        for event in self._numbering.begin():
            await self._give(event.number, event.data)
        with self._desk.watch.watch(self._id, job) as watched:
            while True:
                if watched.gone:
                    await self._fail(ResponseNotFound(f"{self._id} was deleted"))
                    break
                if watched.job is not None and await self._step(watched.job):
                    break
                if self._desk.watch.leaving:
                    await self._fail(ShuttingDown("this gateway is stopping: go on with `starting_after` at another"))
                    break
                await watched.news(_LOOK_S)
                await self._sign(watched.job or job)
        await response.write_eof()
        return response

    async def _step(self, job: Job) -> bool:
        """Send what is new. True when that was the end."""
        # The job was read before its output is: when it had ended by then, so had its output.
        try:
            await self._output()
            if job.state not in TERMINAL:
                return False
            response = await self._shown(job)
        except QueueUnavailable:
            return False
        # Output is kept for half an hour: whoever comes later is given the end, which has all of it.
        last = self._numbering.end(final_event(response), response, after=self._after)
        await self._write(last.data)
        return True

    async def _output(self) -> None:
        while True:
            chunks = await self._desk.jobs.events(self._id, self._chunk, block_ms=0)
            chunks = [chunk for chunk in chunks if not chunk.end]
            if not chunks:
                return
            for chunk in chunks:
                self._chunk = chunk.id
                for event in self._numbering.feed(chunk.attempt, chunk.data):
                    await self._give(event.number, event.data)

    async def _sign(self, job: Job) -> None:
        """A comment where nothing else was said for a while."""
        if asyncio.get_running_loop().time() < self._wrote_at + COMMENT_EVERY_S:
            return
        stage = self._desk.showing.stage(job)
        progress: Progress | None = None
        note = "running"
        if stage is not None and stage.phase != "running":
            note = "waiting"
            if stage.progress is not None:
                progress = msgspec.structs.replace(
                    stage.progress, fraction=stage.fraction, queue_position=job.position, eta_s=stage.eta_s
                )
            elif stage.phase == "cold":
                progress = Progress(model=job.model or job.spec.model, queue_position=job.position)
        await self._write(comment(progress, note))

    async def _fail(self, error: RewarmError) -> None:
        await self._write(TypedChunks.error(error.payload()))

    async def _give(self, number: int, data: bytes) -> None:
        if number > self._after:
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        self._wrote_at = asyncio.get_running_loop().time()
        await self._response.write(data)
