"""One prompt on its way through the engine: what was asked, what was said so far, and to whom it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from worker.engines.torch.sampling import Sampler, Sampling
from worker.engines.torch.text import Detokenizer, Stopper

Finish = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Said:
    """More of row ``index``'s answer; with ``finish`` the last of it."""

    index: int
    text: str
    tokens: int  # of the answer so far
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    error: Exception


Event = Said | Failed
Events = asyncio.Queue[Event]


class Row:
    """The runner's thread calls :meth:`take`; ``cancelled`` may be set from any."""

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        most: int,
        sampling: Sampling,
        *,
        stops: Sequence[str],
        ends: frozenset[int],
        decode: Callable[[list[int]], str],
        events: Events,
    ) -> None:
        self.index = index
        self.prompt = prompt
        self.most = most
        self.said: list[int] = []
        self.events = events
        self.cancelled = False
        self.sampler = Sampler(sampling, prompt)
        self._ends = ends
        self._text = Detokenizer(decode, prompt)
        self._stopper = Stopper(stops)

    @property
    def longest(self) -> int:
        """Tokens that it may come to, prompt included."""
        return len(self.prompt) + self.most

    def take(self, token: int) -> Said:
        """One more token of the answer. An end token is counted, and not said."""
        self.said.append(token)
        if token in self._ends:
            return self._last(self._text.finish(), "stop")
        text, stopped = self._stopper.push(self._text.push(token))
        if stopped:
            return Said(self.index, text, len(self.said), "stop")
        if len(self.said) < self.most:
            return Said(self.index, text, len(self.said))
        rest = self._last(self._text.finish(), "length")
        return Said(self.index, text + rest.text, rest.tokens, rest.finish)

    def _last(self, text: str, finish: Finish) -> Said:
        text, stopped = self._stopper.push(text)
        if not stopped:
            text += self._stopper.finish()
        return Said(self.index, text, len(self.said), "stop" if stopped else finish)


@dataclass(slots=True)
class Generation:
    """A request's rows, which run in the same batch. ``arrived`` on the monotonic clock."""

    rows: Sequence[Row]
    arrived: float = 0.0

    def cancel(self) -> None:
        """Rows that have said their last are not told of it any more."""
        for row in self.rows:
            row.cancelled = True


@dataclass(slots=True)
class Embedding:
    """A request's inputs, as tokens; ``result`` is set in the event loop's thread."""

    inputs: Sequence[Sequence[int]]
    result: asyncio.Future[list[list[float]]]
    arrived: float = 0.0
    cancelled: bool = field(default=False)

    def cancel(self) -> None:
        self.cancelled = True
