"""One attempt at a replica or an upstream: send the request, read the answer, hand its events on. Ends as a value,
never as an exception of the engine's; being cancelled closes the connection, and with it the generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rewarm.errors import EngineBadResponse, EngineStalled, StreamTruncated, WorkerDied
from rewarm.jobs import JobLease
from rewarm.upstream import UpstreamDied, UpstreamProtocolError, UpstreamResponse, UpstreamUnreachable
from worker.jobs.ask import Ask, Shape
from worker.jobs.assemble import Assembler, EngineSaid, NotAChunk, assembler
from worker.jobs.door import Door, header_of
from worker.jobs.sse import Event, EventReader, EventTooLarge
from worker.jobs.verdict import Answered, Broke, End, Said, TooLarge

PLAIN_STALL_FACTOR = 5.0
"""A plain answer is silent until it is whole; the gateway allows it the same."""

ERROR_BYTES = 256 * 1024

Sink = Callable[[bytes, int], Awaitable[None]]
"""Takes a piece of the output and the tokens generated so far; may wait while nothing can be written."""


@dataclass(frozen=True, slots=True)
class Limits:
    stall_s: float  # longest silence of a stream
    max_result_bytes: int


class Attempt:
    """``tokens`` can be read at any time."""

    def __init__(self, door: Door, lease: JobLease, grant: str, ask: Ask, limits: Limits) -> None:
        self._door = door
        self._lease = lease
        self._grant = grant
        self._ask = ask
        self._limits = limits
        self.tokens = 0

    async def run(self, sink: Sink) -> End:
        try:
            answer = await self._door.open(self._lease, self._grant, self._ask)
        except UpstreamUnreachable as error:
            return self._door.unreachable(error)
        try:
            return await self._read(answer, sink)
        except UpstreamUnreachable as error:  # it ended before it had read the request
            return self._door.unreachable(error)
        except UpstreamDied as error:
            return Broke(WorkerDied.code, f"the engine ended while it ran the job ({error})")
        except (UpstreamProtocolError, NotAChunk, EventTooLarge) as error:
            return Broke(EngineBadResponse.code, str(error))
        except _Silent as error:
            return Broke(EngineStalled.code, str(error))
        except EngineSaid as error:
            return Said(error.status, msgspec.json.encode({"error": error.error}))
        finally:
            answer.abort()

    async def _read(self, answer: UpstreamResponse, sink: Sink) -> End:
        streams = self._ask.shape is not Shape.PLAIN
        stall_s = self._limits.stall_s * (1.0 if streams else PLAIN_STALL_FACTOR)
        while not await _within(stall_s, answer.ready()):
            pass
        refused = self._door.refused(answer)
        if refused is not None:
            return refused
        if answer.status != 200:
            body = await self._whole(answer, stall_s, ERROR_BYTES)
            return Said(answer.status, b"" if body is None else body)
        if streams and header_of(answer, b"content-type").lower().startswith("text/event-stream"):
            return await self._stream(answer, stall_s, sink)
        return await self._plain(answer, stall_s)

    async def _plain(self, answer: UpstreamResponse, stall_s: float) -> End:
        body = await self._whole(answer, stall_s, self._limits.max_result_bytes)
        if body is None:
            return TooLarge(self._limits.max_result_bytes)
        body = self._door.named(body)
        if not _is_json(body):
            return Broke(EngineBadResponse.code, "the engine answered 200 with what is no JSON")
        usage = _usage(body)
        generated = (usage or {}).get("completion_tokens") or (usage or {}).get("output_tokens")
        self.tokens = generated if isinstance(generated, int) else 0
        return Answered(body, self.tokens, usage)

    async def _stream(self, answer: UpstreamResponse, stall_s: float, sink: Sink) -> End:
        reader, parts = EventReader(), assembler(self._ask)
        while (chunk := await _within(stall_s, answer.next())) is not None:
            await self._take(reader.feed(chunk), parts, sink)
        await self._take(reader.end(), parts, sink)
        if not parts.whole:
            return Broke(StreamTruncated.code, "the engine ended its stream before the answer was whole")
        whole = parts.answer()
        result = msgspec.json.encode(whole)
        if len(result) > self._limits.max_result_bytes:
            return TooLarge(self._limits.max_result_bytes)
        return Answered(result, parts.tokens, parts.usage, _failure(whole))

    async def _take(self, events: list[Event], parts: Assembler, sink: Sink) -> None:
        for event in events:
            shown = parts.feed(Event(event.name, self._door.named(event.data)))
            self.tokens = parts.tokens
            if shown:
                await sink(shown, parts.tokens)

    async def _whole(self, answer: UpstreamResponse, stall_s: float, limit: int) -> bytes | None:
        """None: larger than ``limit``."""
        pieces: list[bytes] = []
        size = 0
        while (piece := await _within(stall_s, answer.next())) is not None:
            size += len(piece)
            if size > limit:
                return None
            pieces.append(piece)
        return b"".join(pieces)


class _Silent(Exception):
    """Nothing came for too long."""


async def _within(seconds: float, awaitable: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError as error:
        raise _Silent(f"the engine sent nothing for {seconds:g} s") from error


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)  # megabytes: looked at, not made into objects
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _usage(body: bytes) -> dict[str, Any] | None:
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    usage = said.get("usage") if isinstance(said, dict) else None
    return usage if isinstance(usage, dict) else None


def _failure(answer: dict[str, Any]) -> tuple[str, str] | None:
    """Of an object of the Responses API that failed."""
    if answer.get("object") != "response" or answer.get("status") != "failed":
        return None
    error = answer.get("error")
    error = error if isinstance(error, dict) else {}
    return str(error.get("code") or "engine_error"), str(error.get("message") or "the response failed")
