"""Server-sent events out of their lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    name: str  # "" where it has none
    data: str
    id: str | None = None


def events(lines: Iterable[bytes]) -> Iterator[Event]:
    """An event whose end is missing, because the stream was cut, is none."""
    name, id_ = "", None
    data: list[str] = []
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\r\n")
        if not line:
            if data or name:
                yield Event(name, "\n".join(data), id_)
            name, data, id_ = "", [], None
        elif not line.startswith(":"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif field == "id":
                id_ = value
