"""A remote upstream's answer in the form of an engine's: under our name for the model, without the upstream's headers.

Until its first real event a stream has not begun: comments are dropped, and an error in the place of the first chunk is
an error with a true status, which somebody else may still make good.
"""

from __future__ import annotations

import msgspec

from gateway.wire import EventFramer, TypedFramer
from rewarm.errors import RemoteBadAnswer, RewarmError
from rewarm.remote import error_in_event, renamed_event
from rewarm.splice import splice_model
from rewarm.upstream import UpstreamResponse


class WholeAnswer:
    """A plain answer, read to its end."""

    complete = whole = True

    def __init__(self, status: int, body: bytes, model: str) -> None:
        """Raise RemoteBadAnswer for what is no JSON object."""
        try:
            msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteBadAnswer(f"the upstream of {model!r} answered {status} with no JSON object") from error
        self.status = status
        self.headers = [(b"Content-Type", b"application/json")]
        self._body = splice_model(body, model) if status == 200 else body

    async def next(self) -> bytes | None:
        return self.take_whole() or None

    async def read(self, limit: int) -> bytes:
        return self.take_whole()

    def take_whole(self) -> bytes:
        body, self._body = self._body, b""
        return body


class RemoteStream:
    """Whole events, each under our name for the model."""

    complete = whole = False
    status = 200

    def __init__(self, answer: UpstreamResponse, model: str, *, typed: bool) -> None:
        self.headers = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
        self._answer = answer
        self._model = model
        self._framer = TypedFramer() if typed else EventFramer()
        self._ended = False
        self._error: RewarmError | None = None

    async def next(self) -> bytes | None:
        """Raise RemoteFailed or RemoteRateLimited where the upstream tells an error in its stream, UpstreamDied."""
        if self._error is not None:
            raise self._error
        if self._ended:
            return None
        chunk = await self._answer.next()
        if chunk is None:
            self._ended = True
            return self._passed(self._framer.finish()) or None
        return self._passed(self._framer.feed(chunk)) if chunk else b""

    async def read(self, limit: int) -> bytes:
        raise NotImplementedError("a stream is not read as a whole")

    def take_whole(self) -> bytes:
        raise NotImplementedError("a stream is not read as a whole")

    def _passed(self, events: bytes) -> bytes:
        out: list[bytes] = []
        for event in split_events(events):
            data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
            if not data:
                continue  # a comment, or a name without an event
            self._error = error_in_event(self._model, data)
            if self._error is not None:
                if out:
                    break  # what came before it is the client's
                raise self._error
            out.append(renamed_event(event, self._model))
        return b"".join(out)


def split_events(events: bytes) -> list[bytes]:
    """Whole events, each with its blank line."""
    text = events.replace(b"\r\n", b"\n") if b"\r" in events else events
    return [event + b"\n\n" for event in text.split(b"\n\n") if event]


def headers_of(answer: UpstreamResponse) -> dict[str, str]:
    """By name in lower case; the last of several counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
