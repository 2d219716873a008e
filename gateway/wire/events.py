"""The engine's event stream, cut where clients can be interrupted: between events."""

from __future__ import annotations

MAX_EVENT_BYTES = 4 * 2**20
"""An event larger than this passes in pieces: better torn by an accident later than held for ever now."""


class EventFramer:
    """Let whole events through and keep an unfinished one back.

    A client can do nothing with half an event; and if the engine dies within one, an error event after half a line
    would be read as part of it. Whatever way the bytes were cut, the same bytes come out. The usual chunk is one whole
    event and passes untouched, without a copy.
    """

    __slots__ = ("_carry", "_tail", "_torn")

    def __init__(self) -> None:
        self._carry = b""
        self._tail = b""
        self._torn = False

    def feed(self, chunk: bytes) -> bytes:
        if not self._carry and chunk.endswith(b"\n\n"):
            self._tail = chunk
            self._torn = False
            return chunk
        return self._slow(chunk)

    def _slow(self, chunk: bytes) -> bytes:
        known = len(self._carry)
        data = self._carry + chunk
        start = max(0, known - 3)
        cut = max(_after(data, b"\n\n", start), _after(data, b"\n\r\n", start))
        if not cut and len(data) > MAX_EVENT_BYTES:
            cut, self._torn = len(data), True
        elif cut:
            self._torn = False
        self._carry = data[cut:]
        out = data[:cut]
        if out:
            self._tail = out
        return out

    def finish(self) -> bytes:
        """At the stream's clean end: a last event without its blank line, completed; anything else is dropped."""
        rest, self._carry = self._carry.strip(), b""
        if not rest.endswith(b"[DONE]"):
            return b""
        self._tail = rest
        return rest + b"\n\n"

    @property
    def done(self) -> bool:
        """The last event that passed was ``[DONE]``."""
        return self._tail[-32:].rstrip().endswith(b"[DONE]")

    @property
    def between(self) -> bool:
        """What the client has so far ends between two events: a comment or an error event may follow."""
        return not self._torn


def _after(data: bytes, mark: bytes, start: int) -> int:
    at = data.rfind(mark, start)
    return at + len(mark) if at >= 0 else 0
