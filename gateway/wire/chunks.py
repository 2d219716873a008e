"""The pieces of a stream that are ours: comments, no-op chunks, error events."""

from __future__ import annotations

from typing import Any

import msgspec

from rewarm.messages import Progress, to_json
from rewarm.states import NOT_BEGUN

DONE = b"data: [DONE]\n\n"

_dump = msgspec.json.Encoder().encode


def comment(progress: Progress | None, note: str) -> bytes:
    """One SSE comment with a single LF: with a blank line after it, some clients deliver an empty message.

    ``: loading 42.0% phase=restoring bytes=113/269 eta_s=12 position=0``, and ``attempt=2`` from the second attempt on.
    While nothing loads yet, the rest of the line says why, in parentheses.
    """
    if progress is None:
        return f": {note}\n".encode("ascii", "replace")
    parts = [f": loading {progress.fraction * 100:.1f}% phase={progress.phase.value}"]
    if progress.bytes_total:
        parts.append(f"bytes={progress.bytes_done}/{progress.bytes_total}")
    if progress.eta_s is not None:
        parts.append(f"eta_s={progress.eta_s:.0f}")
    if progress.queue_position is not None:
        parts.append(f"position={progress.queue_position}")
    if progress.attempt > 1:
        parts.append(f"attempt={progress.attempt}")
    if progress.phase in NOT_BEGUN and progress.message:
        parts.append(f"({' '.join(progress.message.split())})")  # the phase alone says nothing of what is waited for
    return " ".join(parts).encode("ascii", "replace") + b"\n"


def fallback_comment(asked: str, model: str, reason: str) -> bytes:
    """``: fallback from=big to=small reason=model_load_failed``"""
    return f": fallback from={asked} to={model} reason={reason}\n".encode("ascii", "replace")


def error_event(payload: dict[str, Any]) -> bytes:
    """``error`` is the first key and an object; no ``event:`` line and no ``choices``, which SDKs would misread."""
    return b"data: " + _dump({"error": payload}) + b"\n\n"


class Chunks:
    """No-op chunks of one stream: a choice with an empty delta, which no client fails on.

    The first one of a chat carries the role, later ones must not: clients add roles up ("assistantassistant").
    """

    __slots__ = ("_chat", "_head", "role_sent")

    def __init__(self, *, chat: bool, request_id: str, model: str, created_s: int) -> None:
        self._chat = chat
        self.role_sent = False
        self._head: dict[str, Any] = {
            "id": ("chatcmpl-" if chat else "cmpl-") + request_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created_s,
            "model": model,
        }

    def serve_by(self, model: str) -> None:
        """Another model answers from here on."""
        self._head["model"] = model

    def no_op(self, rewarm: dict[str, Any] | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None}
        if not self._chat:
            choice["text"] = ""
        elif self.role_sent:
            choice["delta"] = {"content": ""}
        else:
            choice["delta"] = {"role": "assistant", "content": ""}
            self.role_sent = True
        body = {**self._head, "choices": [choice]}
        if rewarm is not None:
            body["rewarm"] = rewarm
        return b"data: " + _dump(body) + b"\n\n"

    def error_end(self, payload: dict[str, Any]) -> bytes:
        """How a stream ends that fails after it has begun."""
        return self.no_op() + error_event(payload) + DONE

    def progress(self, progress: Progress | None, note: str) -> bytes:
        """A no-op chunk with the progress as its top-level ``rewarm`` object (``X-Rewarm-Progress: chunks``)."""
        return self.no_op({"state": note} if progress is None else {"state": "loading", **to_json(progress)})
