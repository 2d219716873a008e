"""From tokens to text as they come: nothing is said that the next token could change, nor the start of a stop string.
Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_CONTEXT = 6
"""Tokens before the first one that decide how it is written, with a leading space or without."""

_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 8
"""Tokens that one character may be made of; beyond them its bytes are none."""


class Detokenizer:
    """``decode`` gives the text of a list of tokens. All that :meth:`push` and :meth:`finish` return is the text of all
    tokens pushed."""

    def __init__(self, decode: Callable[[list[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._tokens = list(prompt[-_CONTEXT:])
        self._from = 0  # decoding starts here, a little before what was said, because neighbours matter
        self._said = len(self._tokens)

    def push(self, token: int) -> str:
        self._tokens.append(token)
        return self._say(held=True)

    def finish(self) -> str:
        return self._say(held=False)

    def _say(self, *, held: bool) -> str:
        before = self._decode(self._tokens[self._from : self._said])
        text = self._decode(self._tokens[self._from :])
        unfinished = text.endswith(_UNFINISHED) and len(self._tokens) - self._said < _LONGEST_CHARACTER
        if len(text) <= len(before) or (held and unfinished):
            return ""
        self._from, self._said = self._said, len(self._tokens)
        return text[len(before) :]


class Stopper:
    """Finds the first of ``stops`` in a text that comes in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """What may be said now, and whether a stop string was found: then that is all of it."""
        if not self._stops:
            return text, False
        self._held += text
        found = min((at for stop in self._stops if (at := self._held.find(stop)) >= 0), default=-1)
        if found >= 0:
            return self._held[:found], True
        keep = max(map(self._begun, self._stops))
        said = self._held[: len(self._held) - keep]
        self._held = self._held[len(said) :]
        return said, False

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _begun(self, stop: str) -> int:
        """How much of ``stop`` the end of the held text may be the beginning of."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0
