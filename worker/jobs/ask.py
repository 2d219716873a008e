"""A job's body as the engine gets it: as a stream where the endpoint can stream, whatever the client asked. Pure.

A stream shows progress, makes an abort reach the engine at once, and tells a dead engine from a slow one. Only the
fields named here change; all others pass byte for byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class Shape(StrEnum):
    """How the answer comes, and what it is assembled from."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"
    PLAIN = "plain"  # one JSON answer: embeddings, scores, or a body that no stream can be asked for


_STREAMS = {
    "/v1/chat/completions": Shape.CHAT,
    "/v1/completions": Shape.COMPLETION,
    "/v1/responses": Shape.RESPONSE,
}
_TRUE = msgspec.Raw(b"true")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode


@dataclass(frozen=True, slots=True)
class Ask:
    """``shows_usage``: the client asked for a usage chunk, so it stays in the job's output."""

    body: bytes
    shape: Shape
    shows_usage: bool = False


def ask(path: str, body: bytes) -> Ask:
    """What to send for a job. A body that is no JSON object passes as it is: the engine's refusal says more."""
    shape = _STREAMS.get(path, Shape.PLAIN)
    if shape is Shape.PLAIN:
        return Ask(body, shape)
    try:
        fields = _fields(body)
        options = _options(fields.get("stream_options", b"null"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Ask(body, Shape.PLAIN)
    if _is_true(fields.get("use_beam_search")):
        fields.pop("stream", None)  # engines refuse to stream what they rank at the end
        fields.pop("stream_options", None)
        return Ask(msgspec.json.encode(fields), Shape.PLAIN)
    fields["stream"] = _TRUE
    if shape is Shape.RESPONSE:
        fields.pop("background", None)  # it is one already: the engine only has to answer
        return Ask(msgspec.json.encode(fields), shape)
    options = options or {}
    shows_usage = _is_true(options.get("include_usage"))
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode({**options, "include_usage": _TRUE}))
    return Ask(msgspec.json.encode(fields), shape, shows_usage)


def _is_true(value: msgspec.Raw | None) -> bool:
    return value is not None and bytes(value) == b"true"
