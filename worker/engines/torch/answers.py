"""Answers in OpenAI's shapes: plain objects, chunks of a stream, vectors."""

from __future__ import annotations

import array
import base64
import json
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def usage(prompt: int, completion: int | None = None) -> dict[str, int]:
    answer = {} if completion is None else {"completion_tokens": completion}
    return {"prompt_tokens": prompt, **answer, "total_tokens": prompt + (completion or 0)}


@dataclass(slots=True)
class Answer:
    """``model``: the name that was asked for. ``chat`` decides between the two families of objects."""

    chat: bool
    model: str
    id: str = field(default="")
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = self.id or f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"

    def whole(self, choices: Sequence[tuple[str, str, list[int] | None]], used: dict[str, int]) -> dict[str, Any]:
        """``choices``: text, finish reason and, where they were asked for, token ids."""
        return {
            **self._head("chat.completion" if self.chat else "text_completion"),
            "choices": [self._choice(n, *choice) for n, choice in enumerate(choices)],
            "usage": used,
        }

    def opening(self, index: int, *, with_usage: bool) -> bytes:
        """The first chunk of a choice, which says who speaks; completions have none."""
        if not self.chat:
            return b""
        return self._chunk([self._delta(index, {"role": "assistant", "content": ""}, None)], with_usage)

    def more(self, index: int, text: str, finish: str | None, *, with_usage: bool) -> bytes:
        if not self.chat:
            choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
            return self._chunk([choice], with_usage)
        out = b""
        if text:
            out = self._chunk([self._delta(index, {"content": text}, None)], with_usage)
        if finish is not None:
            out += self._chunk([self._delta(index, {}, finish)], with_usage)
        return out

    def closing(self, used: dict[str, int] | None) -> bytes:
        """The end of a stream, with its usage where that was asked for."""
        if used is None:
            return DONE
        return event({**self._head(self._chunk_kind), "choices": [], "usage": used}) + DONE

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _chunk(self, choices: list[dict[str, Any]], with_usage: bool) -> bytes:
        extra = {"usage": None} if with_usage else {}
        return event({**self._head(self._chunk_kind), "choices": choices, **extra})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, index: int, text: str, finish: str, tokens: list[int] | None) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        ids = {} if tokens is None else {"token_ids": tokens}
        return {"index": index, **said, "logprobs": None, "finish_reason": finish, **ids}

    @staticmethod
    def _delta(index: int, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


def embeddings(model: str, vectors: Sequence[list[float]], *, as_base64: bool, prompt: int) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": n, "embedding": _base64(vector) if as_base64 else vector}
            for n, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": usage(prompt),
    }


def _base64(vector: list[float]) -> str:
    numbers = array.array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
