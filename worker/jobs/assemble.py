"""The plain answer that a stream of chunks amounts to: what the same request without ``stream`` would have got. Pure.

:func:`assembler` gives the one for a shape; it is fed event by event, tells what of each belongs into the job's output,
counts tokens, and has the whole answer at the end.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from worker.jobs.ask import Ask, Shape
from worker.jobs.merge import ChatChoice, TextChoice
from worker.jobs.sse import Event

_decode = msgspec.json.Decoder().decode
_BROKEN_OFF = ("abort", "error")
"""How vLLM ends a stream, cleanly, whose request it gave up (when it is stopped, for one)."""

_ENDS = ("response.completed", "response.incomplete", "response.failed")


class EngineSaid(Exception):
    """The engine reported an error inside its stream. ``status`` is what it would have been without a stream."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "")))
        self.status = status
        self.error = error


class NotAChunk(Exception):
    """An event that is no JSON object, or not of the endpoint's format."""


class Assembler(Protocol):
    tokens: int
    """Generated so far: one for each piece of output, put right by the usage at the end."""
    whole: bool
    """The stream's own end was seen: what came is the whole answer."""
    usage: dict[str, Any] | None

    def feed(self, event: Event) -> bytes:
        """The event as the job's output shows it, b"" where it is not shown. Raise EngineSaid, NotAChunk."""

    def answer(self) -> dict[str, Any]:
        """Only once ``whole``."""


def assembler(ask: Ask) -> Assembler:
    """Raise ValueError for PLAIN, which is no stream."""
    if ask.shape is Shape.RESPONSE:
        return _Response()
    if ask.shape is Shape.PLAIN:
        raise ValueError("a plain answer is not assembled")
    return _Completion(chat=ask.shape is Shape.CHAT, shows_usage=ask.shows_usage)


class _Completion:
    """``chat.completion`` or ``text_completion``, from chunks whose choices come in any order."""

    def __init__(self, *, chat: bool, shows_usage: bool) -> None:
        self.tokens = 0
        self.whole = False
        self.usage: dict[str, Any] | None = None
        self._object = "chat.completion" if chat else "text_completion"
        self._new = ChatChoice if chat else TextChoice
        self._shows_usage = shows_usage
        self._head: dict[str, Any] = {}
        self._choices: dict[int, ChatChoice | TextChoice] = {}

    def feed(self, event: Event) -> bytes:
        if event.done:
            self.whole = True
            return b""
        chunk = _object(event)
        _raise_error(chunk)
        choices = chunk.pop("choices", None)
        if not isinstance(choices, list):
            raise NotAChunk("a chunk without choices")
        had_usage = "usage" in chunk
        usage = chunk.pop("usage", None)
        for choice in choices:
            if not isinstance(choice, dict):
                raise NotAChunk("a choice that is no object")
            if choice.get("finish_reason") in _BROKEN_OFF:
                raise EngineSaid(500, {"message": "the engine broke the answer off", "code": "engine_aborted"})
            index = choice.get("index")
            index = index if isinstance(index, int) else 0
            if index not in self._choices:
                self._choices[index] = self._new(index)
            self.tokens += self._choices[index].add(choice)
        for name, value in chunk.items():
            if self._head.get(name) is None:
                self._head[name] = value
        if isinstance(usage, dict):
            self.usage = usage
            if isinstance(count := usage.get("completion_tokens"), int):
                self.tokens = max(self.tokens, count) if choices else count
        if not had_usage or self._shows_usage:
            return event.encoded()
        if not choices:
            return b""  # the chunk that only we asked for
        return Event(event.name, msgspec.json.encode({**chunk, "choices": choices})).encoded()

    def answer(self) -> dict[str, Any]:
        choices = [self._choices[index].whole() for index in sorted(self._choices)]
        return {**self._head, "object": self._object, "choices": choices, "usage": self.usage}


class _Response:
    """The Responses API sends the whole object with its last event."""

    def __init__(self) -> None:
        self.tokens = 0
        self.whole = False
        self.usage: dict[str, Any] | None = None
        self._answer: dict[str, Any] = {}

    def feed(self, event: Event) -> bytes:
        if event.done:
            return b""
        data = _object(event)
        kind = data.get("type") or event.name
        _raise_error(data)
        if kind == "error":
            raise EngineSaid(500, data)
        if str(kind).endswith(".delta"):
            self.tokens += 1
        if kind in _ENDS:
            answer = data.get("response")
            if not isinstance(answer, dict):
                raise NotAChunk(f"{kind} without its response")
            self._answer, self.whole = answer, True
            if isinstance(usage := answer.get("usage"), dict):
                self.usage = usage
                if isinstance(count := usage.get("output_tokens"), int):
                    self.tokens = count
        return event.encoded()

    def answer(self) -> dict[str, Any]:
        return self._answer


def _object(event: Event) -> dict[str, Any]:
    try:
        data = _decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAChunk(f"an event that is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise NotAChunk("an event that is no JSON object")
    return data


def _raise_error(chunk: dict[str, Any]) -> None:
    """``{"error": {…}}`` in place of a chunk. vLLM writes the status as its code."""
    error = chunk.get("error")
    if not isinstance(error, dict):
        return
    said = next((error[name] for name in ("status", "code") if isinstance(error.get(name), int)), 500)
    raise EngineSaid(said if 400 <= said <= 599 else 500, error)
