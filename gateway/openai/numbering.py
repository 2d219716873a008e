"""The engine's events of a response as the client is given them: under our id, with numbers that go on for ever.

A pure fold over the chunks of all attempts, in their order. Chunks never change once they are in Redis and a later
attempt's come after an earlier one's, so every reader at every gateway gives the same event the same number, and
``starting_after`` needs no memory.

Number 0 is ``response.created``, 1 ``response.queued``. The engine's own ``response.created`` is left out, and so is
its last event: whether the answer counts is not the engine's to say but the job's, see
:class:`gateway.openai.following.Following`. When another attempt begins, what the last one left open ends as
``incomplete``, one more ``response.in_progress`` says so (``rewarm.restarted``), and the new attempt's items get the
output indices after the old ones: nothing is ever added to an item that was given up. The last event has the true
output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.wire.typed import TERMINAL

_dump = msgspec.json.Encoder().encode
_ENDS = frozenset(name.decode() for name in TERMINAL)


@dataclass(frozen=True, slots=True)
class Numbered:
    number: int
    data: bytes  # the whole SSE event


@dataclass(slots=True)
class _Item:
    """An output item that has begun."""

    index: int  # as the client knows it
    item: dict[str, Any]
    text: dict[int, list[str]] = field(default_factory=dict)  # content index → deltas

    def given_up(self) -> dict[str, Any]:
        item = {**self.item, "status": "incomplete"}
        if self.text:
            parts = [
                {"type": "output_text", "text": "".join(t), "annotations": []} for _, t in sorted(self.text.items())
            ]
            item["content"] = parts
        return item


class Numbering:
    """``response`` is the Response object as it is shown in events before the last one."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self._response = dict(response)
        self._next = 0
        self._attempt = 0
        self._restarted = False
        self._base = 0  # output indices that earlier attempts have used
        self._used = 0  # of this attempt
        self._open: dict[int, _Item] = {}

    @property
    def next(self) -> int:
        return self._next

    def begin(self) -> Iterator[Numbered]:
        for kind in ("created", "queued"):
            yield self._event({"type": f"response.{kind}", "response": self._shown("queued")})

    def feed(self, attempt: int, chunk: bytes) -> Iterator[Numbered]:
        if attempt < self._attempt:
            return  # cannot be, Redis refuses it; and must not be
        if attempt > self._attempt:
            yield from self._restart(attempt)
        for event in events_in(chunk):
            kind = event.get("type")
            if not isinstance(kind, str) or kind == "response.created" or kind in _ENDS:
                continue
            if kind == "response.in_progress" and self._restarted:
                continue  # the restart has said so
            self._note(kind, event)
            yield self._event(event)

    def end(self, kind: str, response: Mapping[str, Any], *, after: int = -1) -> Numbered:
        """The last event, with a number above ``after``."""
        self._next = max(self._next, after + 1)
        return self._event({"type": kind, "response": dict(response)})

    def _restart(self, attempt: int) -> Iterator[Numbered]:
        begun = self._attempt > 0
        self._attempt = attempt
        if not begun:
            return
        for item in self._open.values():
            done = {"type": "response.output_item.done", "output_index": item.index, "item": item.given_up()}
            yield self._event(done)
        self._open.clear()
        self._base += self._used
        self._used = 0
        self._restarted = True
        told = {"restarted": True, "attempt": attempt}
        yield self._event({"type": "response.in_progress", "response": self._shown("in_progress"), "rewarm": told})

    def _note(self, kind: str, event: dict[str, Any]) -> None:
        """Keep track of open items; shift what the event says of their places."""
        if isinstance(event.get("response"), dict):
            event["response"] = self._shown("in_progress")
        index = event.get("output_index")
        if not isinstance(index, int):
            return
        self._used = max(self._used, index + 1)
        event["output_index"] = index + self._base
        if kind == "response.output_item.added" and isinstance(event.get("item"), dict):
            self._open[index] = _Item(index + self._base, event["item"])
        elif kind == "response.output_item.done":
            self._open.pop(index, None)
        elif kind == "response.output_text.delta" and index in self._open:
            self._open[index].text.setdefault(int(event.get("content_index") or 0), []).append(str(event.get("delta")))

    def _shown(self, status: str) -> dict[str, Any]:
        return {**self._response, "status": status}

    def _event(self, event: dict[str, Any]) -> Numbered:
        number = self._next
        self._next += 1
        event["sequence_number"] = number
        return Numbered(number, b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), _dump(event)))


def events_in(chunk: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of the events; anything else (comments, ``[DONE]``) is left out."""
    for block in chunk.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].lstrip() for line in block.split(b"\n") if line.startswith(b"data:")]
        if not lines:
            continue
        try:
            event = msgspec.json.decode(b"\n".join(lines))
        except msgspec.DecodeError:
            continue
        if isinstance(event, dict):
            yield event
