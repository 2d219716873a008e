"""How many tokens an answer took, read from its bytes as they pass."""

from __future__ import annotations

import re

_TOTAL = re.compile(rb'"total_tokens":\s*(\d{1,12})')  # within a text its quotes would be escaped
_LONGEST = 40
_EVENT = b"data:"


class UsageTap:
    """The engine's own count where the answer has one, else ``estimated`` for the prompt and one for each event."""

    __slots__ = ("_estimated", "_events", "_reported", "_tail")

    def __init__(self, estimated: int) -> None:
        self._estimated = estimated
        self._events = 0
        self._reported: int | None = None
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        data = self._tail + chunk
        self._events += data.count(_EVENT) - self._tail.count(_EVENT)
        if b'"total_tokens"' in data:
            found = _TOTAL.findall(data)
            if found:
                self._reported = int(found[-1])
        self._tail = data[-_LONGEST:]

    @property
    def total(self) -> int:
        return self._estimated + self._events if self._reported is None else self._reported
