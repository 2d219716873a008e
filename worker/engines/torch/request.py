"""A client's body as a typed request, or the error that it gets. Pure; knows no model and no tokenizer.

What this engine does not do is refused by name: an answer without what was asked for would be worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from rewarm.errors import InvalidJson, InvalidRequest, NotSupported

MOST_PROMPTS = 64
MOST_INPUTS = 2048
_MOST_STOPS = 16

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

Prompt = str | list[int]


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: _Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False


class ChatBody(_Body, frozen=True, kw_only=True):
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Positive | None = None


class CompletionBody(_Body, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    input: str | list[str | int | list[int]]
    encoding_format: str = "float"
    dimensions: _Positive | None = None


_T = TypeVar("_T")

_NOT_DONE: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "echo": (False,),
    "suffix": ("",),
    "audio": (),
    "modalities": (["text"],),
    "prompt_logprobs": (0,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "structured_outputs": (),
}
"""Fields that this engine has no code for, and the values that ask for nothing."""


def decode(body: bytes, kind: type[_T]) -> _T:
    """Raise InvalidJson, InvalidRequest or NotSupported, naming the field."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidJson(f"the body is not JSON: {error}" if body else "the body is empty") from error
    if not isinstance(fields, dict):
        raise InvalidJson("the body must be a JSON object")
    for name, nothing in _NOT_DONE.items():
        value = fields.get(name)
        if value is not None and not any(type(value) is type(plain) and value == plain for plain in nothing):
            raise NotSupported(f"the torch engine does not do `{name}`", param=name)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Raise InvalidRequest."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(found) > _MOST_STOPS or "" in found:
        raise InvalidRequest(f"`stop` is at most {_MOST_STOPS} strings, none of them empty", param="stop")
    return found


def prompts(given: str | list[str | int | list[int]], field: str, most: int) -> list[Prompt]:
    """One prompt each: a text, texts, one list of tokens, or lists of tokens. Raise InvalidRequest."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequest(f"`{field}` is empty", param=field)
    out: list[Prompt] = []
    tokens = [item for item in given if isinstance(item, int)]
    if tokens:
        if len(tokens) != len(given):
            raise InvalidRequest(f"`{field}` mixes tokens with something else", param=field)
        return [tokens]
    for item in given:
        if isinstance(item, int) or not item:
            raise InvalidRequest(f"`{field}` has an empty entry", param=field)
        out.append(item)
    if len(out) > most:
        raise InvalidRequest(f"`{field}` has {len(out)} entries, {most} are allowed", param=field)
    return out


def messages(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As chat templates want them: content as one text. Raise InvalidRequest or NotSupported."""
    return [_message(n, message) for n, message in enumerate(given)]


def _message(number: int, message: dict[str, Any]) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message.get("role"), str):
        raise InvalidRequest(f"`{where}.role` is required", param="messages")
    if message.get("tool_calls") or message["role"] in ("tool", "function"):
        raise NotSupported(f"the torch engine does not do tools ({where})", param="messages")
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        content = ""
    if isinstance(content, list):
        content = "".join(_part(where, part) for part in content)
    if not isinstance(content, str):
        raise InvalidRequest(f"`{where}.content` must be a string or a list of parts", param="messages")
    return {"role": message["role"], "content": content}


def _part(where: str, part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidRequest(f"`{where}.content` has a part without a type", param="messages")
    if part["type"] != "text":
        raise NotSupported(f"the torch engine does not do {part['type']!r} ({where})", param="messages")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"`{where}.content` has a text part without text", param="messages")
    text: str = part["text"]
    return text


def _invalid(message: str) -> InvalidRequest:
    """msgspec says "Expected `str`, got `int` - at `$.model`"."""
    what, _, place = message.partition(" - at `$")
    field = place.strip("`.[").split(".")[0].split("[")[0]
    if not field and "required field `" in what:
        field = what.split("required field `")[1].split("`")[0]
    if "missing required field" in what:
        return InvalidRequest(f"`{field}` is required", param=field)
    return InvalidRequest(f"`{field}`: {what[:1].lower()}{what[1:]}", param=field or None)
