"""What the gateway needs to know of a body: the model, whether it streams, and that it is JSON of the right shape.

The body itself goes to the engine untouched; the engine judges everything else.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from rewarm.errors import InvalidJson, InvalidRequest
from rewarm.not_json import why_not_json

_WHITESPACE = b" \t\r\n"
_LIST = b"["
_TEXT_OR_LIST = b'["'


class Peek(msgspec.Struct):
    """The fields that are looked at. ``model`` last given counts, as it does for the engine."""

    model: str
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()  # of embeddings and responses
    background: bool | None = None  # of responses
    keep_alive: float | str | None = None  # Ollama's: for how long the model stays as it is after this request


class Endpoint(msgspec.Struct, frozen=True):
    path: str
    chat: bool
    needs: str  # the field a request makes no sense without
    starts: bytes  # what its JSON may begin with
    typed: bool = False  # its stream is of typed events, without [DONE]; its body may ask for the background


ENDPOINTS: dict[str, Endpoint] = {
    e.path: e
    for e in (
        Endpoint("/v1/chat/completions", True, "messages", _LIST),
        Endpoint("/v1/completions", False, "prompt", _TEXT_OR_LIST),
        Endpoint("/v1/embeddings", False, "input", _TEXT_OR_LIST),
        Endpoint("/v1/responses", False, "input", _TEXT_OR_LIST, typed=True),
    )
}

_decode = msgspec.json.Decoder(Peek).decode


def peek(body: bytes, endpoint: Endpoint) -> Peek:
    """Raise InvalidJson (with the place) or InvalidRequest (with the field)."""
    try:
        seen = _decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(body, error) from error
    needed: msgspec.Raw = getattr(seen, endpoint.needs)
    start = bytes(memoryview(needed)[:1])  # not a copy of what may be megabytes
    if not start:
        raise InvalidRequest(f"`{endpoint.needs}` is required", param=endpoint.needs)
    if start not in endpoint.starts:
        kinds = "a list" if endpoint.starts == _LIST else "a string or a list"
        raise InvalidRequest(f"`{endpoint.needs}` must be {kinds}", param=endpoint.needs)
    if not seen.model:
        raise InvalidRequest("`model` must name a model", param="model")
    return seen


def not_json(body: bytes, error: Exception) -> InvalidJson:
    """``error`` is the decoder's."""
    return InvalidJson(f"the body is not JSON: {why_not_json(body, error)}" if body else "the body is empty")


_KEEP = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_KEEP_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def keep_alive_s(value: float | str | None) -> float | None:
    """Seconds, below 0 for ever, None where nothing is asked. A number of seconds, or Go's way to write a duration, as
    Ollama takes them: ``0``, ``-1``, ``"10m"``, ``"1h30m"``. Raise InvalidRequest."""
    if value is None or isinstance(value, float):
        return value
    text = value.strip()
    negative = text.startswith("-")
    digits = text.lstrip("+-")
    try:
        seconds = float(digits)
    except ValueError:
        parts = _KEEP.findall(digits)
        if not parts or "".join(number + unit for number, unit in parts) != digits:
            raise InvalidRequest(
                f"`keep_alive` must be seconds or a duration such as 10m, not {value[:40]!r}", param="keep_alive"
            ) from None
        seconds = sum(float(number) * _KEEP_S[unit] for number, unit in parts)
    if not math.isfinite(seconds):
        raise InvalidRequest("`keep_alive` must be a finite number of seconds", param="keep_alive")
    return -1.0 if negative else seconds


def wants_background(body: bytes, endpoint: Endpoint) -> bool:
    """Raise as :func:`peek` does. Most bodies do not name the word, and are not read twice."""
    return b'"background"' in body and bool(peek(body, endpoint).background)


def _invalid(message: str) -> InvalidRequest:
    """msgspec says "Expected `str`, got `int` - at `$.model`"."""
    what, _, place = message.partition(" - at `$")
    field = place.strip("`.[").split(".")[0].split("[")[0]
    if not field and "required field `" in what:
        field = what.split("required field `")[1].split("`")[0]
    if not field:
        return InvalidRequest("the body must be a JSON object")
    if "missing required field" in what:
        return InvalidRequest(f"`{field}` is required", param=field)
    return InvalidRequest(f"`{field}`: {what[:1].lower()}{what[1:]}", param=field)
