"""Take the role out of the engine's first chunks, when the gateway has sent it already."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_EVENTS = re.compile(rb"(?:.|\n)*?\n\r?\n")
_DATA = b"data:"


class RoleStripper:
    """Fed with whole events. ``done`` once the role is gone or can no longer come; then bytes pass unread."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def feed(self, data: bytes) -> bytes:
        if self.done or not data:
            return data
        out: list[bytes] = []
        end = 0
        for match in _EVENTS.finditer(data):
            event, self.done = _without_role(match.group())
            out.append(event)
            end = match.end()
            if self.done:
                break
        out.append(data[end:])
        return b"".join(out)


def _without_role(event: bytes) -> tuple[bytes, bool]:
    """The event, and whether no role can follow. Only a single line of data is looked at: every engine writes that."""
    lines = event.splitlines(keepends=True)
    found = [n for n, line in enumerate(lines) if line.startswith(_DATA)]
    if len(found) != 1:
        return event, False
    line = lines[found[0]]
    text = line[len(_DATA) :].strip()
    if text == b"[DONE]":
        return event, True
    try:
        chunk = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return event, False
    delta = _first_delta(chunk)
    if delta is None:
        return event, False
    if "role" not in delta:
        # Text or a tool call without a role before it: none will follow.
        return event, any(delta.values())
    del delta["role"]
    ending = line[len(line.rstrip(b"\r\n")) :]
    lines[found[0]] = _DATA + b" " + msgspec.json.encode(chunk) + ending
    return b"".join(lines), True


def _first_delta(chunk: Any) -> dict[str, Any] | None:
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("index", 0) == 0 and isinstance(choice.get("delta"), dict):
            delta: dict[str, Any] = choice["delta"]
            return delta
    return None
