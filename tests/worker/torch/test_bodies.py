"""What a client may ask: typed, and refused by name where this engine cannot do it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rewarm.errors import InvalidJson, InvalidRequest, NotSupported, RewarmError
from worker.engines.torch.request import ChatBody, CompletionBody, EmbeddingBody, decode, messages, prompts, stops

MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> ChatBody:
    return decode(json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode(), ChatBody)


def test_fields_keep_their_types() -> None:
    body = chat(
        temperature=1, top_p=0.5, max_completion_tokens=9, stop=["a", "b"], stream_options={"include_usage": True}
    )
    assert (body.temperature, body.top_p, body.max_completion_tokens) == (1.0, 0.5, 9)
    assert stops(body.stop) == ("a", "b") and stops("one") == ("one",) and stops(None) == ()
    assert body.stream_options is not None and body.stream_options.include_usage


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"seed": "x"}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stream_options": 5}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"model": None}, "model"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat(**fields)
    assert raised.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"top_logprobs": 3},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"5": 10}},
        {"modalities": ["text", "audio"]},
    ],
)
def test_what_the_engine_does_not_do_is_refused_and_not_ignored(fields: dict[str, Any]) -> None:
    with pytest.raises(NotSupported) as raised:
        chat(**fields)
    assert raised.value.param in fields


def test_asking_for_nothing_special_is_fine() -> None:
    chat(
        n=1, logprobs=False, tools=[], tool_choice="none", response_format={"type": "text"}, logit_bias=None, user="me"
    )


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"nonsense", b'"text"', b"\xff", b"[" * 100_000])
def test_what_is_no_json_object(raw: bytes) -> None:
    with pytest.raises(InvalidJson):
        decode(raw, ChatBody)


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages([{"role": "user", "content": parts, "name": "x"}]) == [{"role": "user", "content": "ab"}]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"content": "Hi"}, InvalidRequest),
        ({"role": "user"}, InvalidRequest),
        ({"role": "user", "content": 5}, InvalidRequest),
        ({"role": "user", "content": [{"text": "no type"}]}, InvalidRequest),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, NotSupported),
        ({"role": "tool", "content": "5"}, NotSupported),
    ],
)
def test_messages_that_are_none(message: dict[str, Any], error: type[RewarmError]) -> None:
    with pytest.raises(error) as raised:
        messages([message])
    assert raised.value.param == "messages"


def test_prompts_are_texts_or_tokens() -> None:
    assert prompts("a", "prompt", 4) == ["a"]
    assert prompts(["a", "b"], "prompt", 4) == ["a", "b"]
    assert prompts([1, 2], "prompt", 4) == [[1, 2]]
    assert prompts([[1], [2, 3]], "prompt", 4) == [[1], [2, 3]]


@pytest.mark.parametrize("given", [[], ["a", 1], [1, [2]], ["a", ""], [[]], ["x"] * 5])
def test_prompts_that_are_none(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        prompts(given, "prompt", 4)


def test_completions_and_embeddings_are_typed_too() -> None:
    body = decode(b'{"model": "m", "prompt": [1, 2]}', CompletionBody)
    assert body.prompt == [1, 2]
    with pytest.raises(InvalidRequest):
        decode(b'{"model": "m", "prompt": [true]}', CompletionBody)
    with pytest.raises(InvalidRequest):
        decode(b'{"model": "m", "input": {"a": 1}}', EmbeddingBody)
