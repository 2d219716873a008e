"""What a request needs of the model that answers it, held against what a model can. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rewarm.messages import Capabilities

_ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/embeddings": "embeddings",
}
_IMAGES = frozenset(("image_url", "input_image", "image"))
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")

BYTES_PER_TOKEN = 4.0
"""Of English text, about, with the tokenizers of today's models. It is a look ahead: the engine counts for itself."""

_WORDS = {"response_format": "a response format", "images": "images", "tools": "tools"}


@dataclass(frozen=True, slots=True)
class Needs:
    capabilities: frozenset[str]
    prompt_tokens: int  # estimated
    answer_tokens: int  # asked for; 0 where the request does not say

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens


def needs_of(path: str, body: bytes) -> Needs:
    """``body`` has passed :func:`gateway.parse.peek`."""
    fields = msgspec.json.decode(body)
    can = {_ENDPOINTS[path]}
    if fields.get("tools") or fields.get("functions"):
        can.add("tools")
    if _formatted(fields):
        can.add("response_format")
    prompt = [fields.get(name) for name in ("messages", "prompt", "input", "instructions", "tools")]
    size = 0
    for kind, text in _texts(prompt):
        if kind in _IMAGES:
            can.add("images")
        else:
            size += len(text.encode("utf-8", "replace"))
    limits = [value for name in _LIMITS if isinstance(value := fields.get(name), int)]
    return Needs(frozenset(can), round(size / BYTES_PER_TOKEN), max(limits, default=0))


def obstacle(needs: Needs, can: Capabilities) -> str:
    """Why a model cannot take the request; empty where it can, as far as is known."""
    if can.can is not None:
        missing = sorted(needs.capabilities - set(can.can))
        if missing:
            return f"does not do {' or '.join(_WORDS.get(name, name) for name in missing)}"
    if can.context_length is not None and needs.tokens > can.context_length:
        return f"its context has {can.context_length} tokens, the request needs about {needs.tokens}"
    return ""


def _formatted(fields: dict[str, Any]) -> bool:
    text = fields.get("text")  # of the Responses API
    for format_ in (fields.get("response_format"), text.get("format") if isinstance(text, dict) else None):
        if isinstance(format_, dict) and format_.get("type") not in (None, "text"):
            return True
    return False


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """(kind of the part, text) of everything that is said, however deep. Images are given without their bytes."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield "text", one
        elif isinstance(one, int):
            yield "token", "abcd"  # a prompt may be given as tokens
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, dict):
            kind = one.get("type")
            if kind in _IMAGES:
                yield kind, ""
            else:
                waiting.extend(part for name, part in one.items() if name not in ("type", "role"))
