"""Streams of typed events, as the Responses API has them: each event names its type, the last one carries the answer.

Nothing may stand among them that is not such an event (clients check the order), so the only sign of life is a comment.
And there is no ``[DONE]``: a stream is whole when its last event is one of :data:`TERMINAL`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.chunks import Chunks, comment
from gateway.wire.events import EventFramer
from rewarm.messages import Progress

TERMINAL = frozenset((b"response.completed", b"response.incomplete", b"response.failed", b"error"))

_dump = msgspec.json.Encoder().encode


class TypedChunks(Chunks):
    """In the place of no-op chunks: nothing. Progress is a comment in either mode."""

    __slots__ = ()

    def no_op(self, rewarm: dict[str, Any] | None = None) -> bytes:
        return b""

    def progress(self, progress: Progress | None, note: str) -> bytes:
        return comment(progress, note)

    def error_end(self, payload: dict[str, Any]) -> bytes:
        return self.error(payload)

    @staticmethod
    def error(payload: dict[str, Any]) -> bytes:
        """The API's own error event, with our envelope beside it: SDKs raise for ``error``, others read the type."""
        told = {name: payload.get(name) for name in ("code", "message", "param")}
        return b"event: error\ndata: " + _dump({"error": payload, "type": "error", **told}) + b"\n\n"


class TypedFramer(EventFramer):
    """Whole events only; done after a terminal one."""

    __slots__ = ()

    def finish(self) -> bytes:
        """At the stream's clean end: a terminal event without its blank line, completed; anything else is dropped."""
        rest, self._carry = self._carry.strip(), b""
        if event_type(rest) not in TERMINAL:
            return b""
        self._tail = rest + b"\n\n"
        return self._tail

    @property
    def done(self) -> bool:
        last = self._tail.rstrip()
        at = max(last.rfind(b"\n\n"), last.rfind(b"\n\r\n"))
        return event_type(last[at + 1 :].lstrip()) in TERMINAL


def event_type(event: bytes) -> bytes:
    """What stands in the event's ``event:`` line; b'' without one."""
    for line in event.splitlines():
        if line.startswith(b"event:"):
            return line[6:].strip()
        if line.startswith(b"data:"):  # megabytes may follow
            break
    return b""
