"""The engine's event stream, cut into events. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EVENT_BYTES = 8 * 2**20
"""A single event larger than this is no answer of a language model: reading it would only cost memory."""


class EventTooLarge(Exception):
    """More than MAX_EVENT_BYTES without an event's end."""


@dataclass(frozen=True, slots=True)
class Event:
    """``name`` of the ``event:`` line, empty where there was none; ``data`` lines, joined by a line feed."""

    name: str
    data: bytes

    @property
    def done(self) -> bool:
        return self.data.strip() == b"[DONE]"

    def encoded(self) -> bytes:
        """As it goes over the wire, blank line included."""
        head = f"event: {self.name}\n".encode() if self.name else b""
        return head + b"".join(b"data: " + line + b"\n" for line in self.data.split(b"\n")) + b"\n"


class EventReader:
    """Fed with the bytes as they come, cut anywhere; gives whole events, without comments."""

    __slots__ = ("_carry",)

    def __init__(self) -> None:
        self._carry = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Raise EventTooLarge."""
        data = self._carry + chunk
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")  # one that is cut after its \r is put together by the next feed
        *blocks, self._carry = data.split(b"\n\n")
        if len(self._carry) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [event for block in blocks if (event := _parse(block)) is not None]

    def end(self) -> list[Event]:
        """At the stream's clean end: a last ``[DONE]`` without its blank line. Half an event is dropped."""
        rest, self._carry = self._carry, b""
        event = _parse(rest)
        return [event] if event is not None and event.done else []


def _parse(block: bytes) -> Event | None:
    name = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return Event(name.decode("utf-8", "replace"), b"\n".join(data)) if any(data) else None
