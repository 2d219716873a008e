"""The engine's answer on its way to the client: a plain body, or a stream of events kept whole to its end."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import msgspec

from gateway.calls import Call
from gateway.headers import to_client
from gateway.http import Answer, Response, StreamResponse
from gateway.reply import STREAM_LINES, Reply
from gateway.whole import Body, Watch, read_whole
from gateway.wire import EventFramer, RoleStripper, TypedFramer
from gateway.wire.truncation import TAIL_BYTES, cut_off, tail_of
from rewarm.errors import EngineBadResponse, EngineFailed, RewarmError, StreamTruncated, WorkerDied
from rewarm.upstream import UpstreamDied

_log = logging.getLogger("rewarm.gateway.relay")


class EngineAnswer(Body, Protocol):
    """An engine's answer whose head has come; :class:`rewarm.upstream.UpstreamResponse` is one."""

    status: int
    headers: list[tuple[bytes, bytes]]
    complete: bool  # all of the body is here
    whole: bool  # it will come in one piece

    async def read(self, limit: int) -> bytes: ...
    def take_whole(self) -> bytes: ...


_MAX_ERROR_BYTES = 256 * 2**10


async def relay(call: Call, reply: Reply, answer: EngineAnswer, watch: Watch) -> Answer:
    """Send the engine's answer. Raise UpstreamDied or a RewarmError only while nothing of it has reached the client."""
    call.engine_status = answer.status
    if answer.status >= 500 and call.standby is not None and call.standby.helps(EngineFailed.code):
        raise EngineFailed(f"the engine of {call.entry.model!r} answered {answer.status}")
    if call.stream and answer.status == 200 and _is_events(answer):
        return await _events(call, reply, answer, watch)
    if reply.committed:
        return await _late(call, reply, answer, watch)
    return await _plain(call, reply, answer, watch)


def _is_events(answer: EngineAnswer) -> bool:
    for name, value in answer.headers:
        if len(name) == 12 and name.lower() == b"content-type":
            return value[:17].lower() == b"text/event-stream"
    return False


def _length(answer: EngineAnswer) -> int | None:
    for name, value in answer.headers:
        if len(name) == 14 and name.lower() == b"content-length":
            return int(value)  # llhttp has read it as one
    return None


# --- plain answers ---------------------------------------------------------------------------------------------------


async def _plain(call: Call, reply: Reply, answer: EngineAnswer, watch: Watch) -> Answer:
    """Status, headers and body as they are."""
    now = reply.now()
    call.first_byte_at = now
    if answer.complete or answer.whole:
        body = answer.take_whole() if answer.complete else await answer.read(_MAX_ERROR_BYTES)
        call.status = answer.status
        call.passed(body)
        if cut_off(body[-TAIL_BYTES:]):
            raise _cut_off(call)
        return Response(status=answer.status, lines=to_client(call, answer, now), body=body)
    response = await reply.commit(answer.status, to_client(call, answer, now), _length(answer))
    reply.answering = True
    await _body(call, reply, response, answer, watch)
    await response.write_eof()
    return response


async def _late(call: Call, reply: Reply, answer: EngineAnswer, watch: Watch) -> Answer:
    """The status line is out: only a 200 can still be told as what it is."""
    response = reply.response
    if response is None:
        raise RuntimeError("not committed")
    call.first_byte_at = reply.now()
    if call.stream:
        body = await _error_body(call, reply, answer, watch)
        said = _error_of(answer.status, body)
        call.error = str(said["code"] or EngineBadResponse.code)
        return await reply.fail_stream(said)
    if answer.status != 200:
        body = await _error_body(call, reply, answer, watch)
        call.error = str(_error_of(answer.status, body)["code"] or EngineBadResponse.code)
        return reply.break_off(answer.status, {"Content-Type": "application/json"}, body, None)
    await _body(call, reply, response, answer, watch)
    await response.write_eof()
    return response


async def _body(call: Call, reply: Reply, response: StreamResponse, answer: EngineAnswer, watch: Watch) -> None:
    """Pass the body on. If it ends early the connection is cut: a length or a last chunk would call it whole."""
    now = reply.now
    tail = b""
    try:
        while (chunk := await answer.next()) is not None:
            if chunk:
                reply.answering = True
                call.passed(chunk)
                tail = tail_of(tail, chunk)
                await response.write(chunk)
                call.last_at = now()
            else:
                await watch(call, reply)
        if cut_off(tail):
            raise _cut_off(call)
    except (UpstreamDied, RewarmError) as error:
        if not reply.answering:
            raise
        _log.warning("request=%s broken off in its body: %s", call.id, error)
        call.error = error.code if isinstance(error, RewarmError) else WorkerDied.code
        call.request.abort()
        raise ConnectionAbortedError("the answer broke off") from error


def _cut_off(call: Call) -> StreamTruncated:
    return StreamTruncated(f"the answer of {call.entry.model!r} was cut off by a proxy's time limit on its way")


async def _error_body(call: Call, reply: Reply, answer: EngineAnswer, watch: Watch) -> bytes:
    def larger() -> EngineBadResponse:
        return EngineBadResponse(f"the engine answered {answer.status} with more than {_MAX_ERROR_BYTES} bytes")

    return await read_whole(call, reply, answer, watch, _MAX_ERROR_BYTES, larger)


def _error_of(status: int, body: bytes) -> dict[str, Any]:
    """The engine's own error as the payload of an error event."""
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = None
    if isinstance(said, dict):
        inner = said.get("error", said)
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            return {"type": "server_error", "param": None, "code": None, **inner, "status": status}
    text = body[:1000].decode("utf-8", "replace").strip() or f"the engine answered {status}"
    return {"message": text, "type": "server_error", "param": None, "code": EngineBadResponse.code, "status": status}


# --- streams ---------------------------------------------------------------------------------------------------------


async def _events(call: Call, reply: Reply, answer: EngineAnswer, watch: Watch) -> Answer:
    """Nothing is committed before the engine's first event: until then a dead engine is a true status."""
    framer = TypedFramer() if call.typed else EventFramer()
    first = b""
    while not first:
        chunk = await answer.next()
        if chunk is None:
            break
        if chunk:
            call.passed(chunk)
            first = framer.feed(chunk)
            call.last_at = reply.now()
        else:
            await watch(call, reply)
    first = first or framer.finish()
    if not first:
        raise StreamTruncated(f"the engine of {call.entry.model!r} ended the stream before its first event")
    now = call.first_byte_at = call.last_at = reply.now()
    stripper: RoleStripper | None = None
    if reply.committed:
        await reply.preface(_told(call))
        if reply.chunks.role_sent:
            stripper = RoleStripper()
            first = stripper.feed(first)
    else:
        await reply.commit(200, to_client(call, answer, now) + STREAM_LINES)
        if call.fallback and await reply.announce(_told(call)):
            stripper = RoleStripper()
            first = stripper.feed(first)
    reply.answering = reply.events = True
    return await _run(call, reply, answer, watch, framer, stripper, first)


async def _run(
    call: Call,
    reply: Reply,
    answer: EngineAnswer,
    watch: Watch,
    framer: EventFramer,
    stripper: RoleStripper | None,
    first: bytes,
) -> Answer:
    response = reply.response
    if response is None:
        raise RuntimeError("not committed")
    now = reply.now
    try:
        if first:
            await response.write(first)
        while (chunk := await answer.next()) is not None:
            if chunk:
                call.passed(chunk)
                chunk = framer.feed(chunk)
                if stripper is not None:
                    chunk = stripper.feed(chunk)
                    if stripper.done:
                        stripper = None
                if chunk:
                    await response.write(chunk)
                call.last_at = now()
            else:
                await watch(call, reply)
    except UpstreamDied:
        # From here on everything that goes wrong is told in the stream.
        reply.torn = not framer.between
        raise
    rest = framer.finish()
    if rest:
        await response.write(rest)
    if not framer.done:
        raise StreamTruncated(f"the engine of {call.entry.model!r} ended the stream without its last event")
    await response.write_eof()
    return response


_OF_A_WAKE = ("tier", "tier_reason", "weights", "bytes", "gb_per_s", "duration_s")


def _told(call: Call) -> dict[str, Any]:
    """The ``rewarm`` object of the no-op chunk before the engine's data."""
    told: dict[str, Any] = {
        "state": "running",
        "model": call.entry.model,
        "request": call.id,
        "start": call.start,
        "waited_s": round(call.waited_s, 3),
        "attempts": call.attempts,
        "replica": call.replica,
    }
    if call.fallback:
        told["fallback"] = {"from": call.asked, "to": call.entry.model, "reason": call.fallback}
    if call.start == "cold":
        told["phases"] = [{"phase": t.phase, "duration_s": t.duration_s, "bytes": t.bytes} for t in call.timings]
        if call.wake is not None:
            told["wake"] = {name: getattr(call.wake, name) for name in _OF_A_WAKE}
    return told
