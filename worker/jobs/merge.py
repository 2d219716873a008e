"""One choice of an answer, put together from the pieces of a stream. Pure."""

from __future__ import annotations

from typing import Any

_ONCE = frozenset(("role", "id", "type", "index", "name"))
"""Strings that are said, not continued: a repeat must not be added up ("assistantassistant")."""


class ChatChoice:
    """Deltas of one choice: text, reasoning, tool calls, log probabilities; fields that we do not know are kept."""

    def __init__(self, index: int) -> None:
        self._message: dict[str, Any] = {"role": "assistant"}
        self._tools: dict[int, dict[str, Any]] = {}
        self._choice: dict[str, Any] = {"index": index}
        self._logprobs: dict[str, Any] | None = None

    def add(self, choice: dict[str, Any]) -> int:
        """The number of tokens in this piece, as far as one can tell: with log probabilities exactly, else one."""
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        for name, value in delta.items():
            if name == "tool_calls":
                for call in value or ():
                    self._tool(call)
            else:
                self._message[name] = joined(self._message.get(name), value, name)
        self._logprobs = _logprobs(self._logprobs, choice.get("logprobs"))
        keep_last(self._choice, choice, ("index", "delta", "logprobs"))
        told = any(value for name, value in delta.items() if name != "role")
        return _listed(choice.get("logprobs"), "content") or int(told)

    def whole(self) -> dict[str, Any]:
        message = settled(self._message)
        if self._tools:
            # No text beside them: plain answers say null there.
            message["content"] = message.get("content") or None
            message["tool_calls"] = [settled(self._tools[index]) for index in sorted(self._tools)]
        else:
            message.setdefault("content", None)
        message.setdefault("refusal", None)
        return {
            "index": self._choice["index"],
            "message": message,
            "logprobs": self._logprobs,
            "finish_reason": None,
            **{k: v for k, v in self._choice.items() if k != "index"},
        }

    def _tool(self, call: dict[str, Any]) -> None:
        index = call.get("index")
        index = index if isinstance(index, int) else len(self._tools)
        known = self._tools.setdefault(index, {})
        for name, value in call.items():
            if name != "index" and value is not None:
                known[name] = joined(known.get(name), value, name)


class TextChoice:
    """Pieces of one choice of ``/v1/completions``. An engine that sends a choice whole sends it in one piece."""

    def __init__(self, index: int) -> None:
        self._text: list[str] = []
        self._choice: dict[str, Any] = {"index": index}
        self._logprobs: dict[str, Any] | None = None

    def add(self, choice: dict[str, Any]) -> int:
        text = choice.get("text")
        if isinstance(text, str):
            self._text.append(text)
        self._logprobs = _logprobs(self._logprobs, choice.get("logprobs"))
        keep_last(self._choice, choice, ("index", "text", "logprobs"))
        return _listed(choice.get("logprobs"), "tokens") or int(bool(text))

    def whole(self) -> dict[str, Any]:
        return {
            "index": self._choice["index"],
            "text": "".join(self._text),
            "logprobs": self._logprobs,
            "finish_reason": None,
            **{k: v for k, v in self._choice.items() if k != "index"},
        }


class _Text(list[str]):
    """A string in pieces: adding each to the whole would make a long answer quadratic."""


def joined(before: Any, value: Any, name: str) -> Any:
    """Text and lists grow, objects are joined field by field, anything else is as last said. See :func:`settled`."""
    if value is None:
        return before
    if isinstance(value, str) and name not in _ONCE:
        if not isinstance(before, _Text):
            before = _Text()
        before.append(value)
        return before
    if isinstance(value, str):
        return value or before  # engines repeat a name, or send it empty with later pieces
    if isinstance(value, dict):
        into = before if isinstance(before, dict) else {}
        for field, part in value.items():
            into[field] = joined(into.get(field), part, field)
        return into
    if isinstance(value, list) and isinstance(before, list):
        before.extend(value)
        return before
    return value


def settled(value: Any) -> Any:
    if isinstance(value, _Text):
        return "".join(value)
    if isinstance(value, dict):
        return {name: settled(part) for name, part in value.items()}
    return value


def keep_last(into: dict[str, Any], choice: dict[str, Any], less: tuple[str, ...]) -> None:
    """The finish reason and whatever else an engine says of a choice; a later null takes nothing back."""
    for name, value in choice.items():
        if name not in less and (value is not None or name not in into):
            into[name] = value


def _logprobs(before: dict[str, Any] | None, value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return before
    if before is None:
        return {name: list(part) if isinstance(part, list) else part for name, part in value.items()}
    for name, part in value.items():
        known = before.get(name)
        if isinstance(known, list) and isinstance(part, list):
            known.extend(part)  # in place: a list per token would make a long answer quadratic
        elif part is not None:
            before[name] = part
    return before


def _listed(value: Any, name: str) -> int:
    part = value.get(name) if isinstance(value, dict) else None
    return len(part) if isinstance(part, list) else 0
