"""What the engine is sent for a job: a stream where there can be one, everything else byte for byte."""

from __future__ import annotations

import json

import pytest

from worker.jobs.ask import Shape, ask

CHAT = "/v1/chat/completions"


def test_a_plain_chat_is_sent_as_a_stream_with_usage_that_the_output_does_not_show() -> None:
    sent = ask(CHAT, b'{"model":"m","messages":[],"temperature":0}')
    assert sent.shape is Shape.CHAT
    assert json.loads(sent.body) == {
        "model": "m",
        "messages": [],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert not sent.shows_usage


def test_what_the_client_set_stays_as_it_wrote_it() -> None:
    body = b'{"model": "m", "seed": 12345678901234567890123, "top_p": 0.10, "metadata": {"a":1, "a":2}}'
    sent = ask(CHAT, body).body
    assert b'"seed":12345678901234567890123' in sent
    assert b'"top_p":0.10' in sent
    assert b'{"a":1, "a":2}' in sent


@pytest.mark.parametrize(("include", "shows"), [(b"true", True), (b"false", False), (b"null", False)])
def test_a_client_that_asked_for_the_usage_chunk_gets_it(include: bytes, shows: bool) -> None:
    body = b'{"stream":true,"stream_options":{"include_usage":' + include + b',"continuous_usage_stats":true}}'
    sent = ask(CHAT, body)
    assert sent.shows_usage is shows
    assert json.loads(sent.body)["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_a_background_response_is_to_the_engine_a_stream_like_any_other() -> None:
    sent = ask("/v1/responses", b'{"model":"m","input":"hello","background":true,"store":false}')
    assert sent.shape is Shape.RESPONSE
    assert json.loads(sent.body) == {"model": "m", "input": "hello", "store": False, "stream": True}


def test_completions_stream_too() -> None:
    assert ask("/v1/completions", b'{"prompt":"x"}').shape is Shape.COMPLETION


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", b'{"model":"m","input":["a"]}'),
        ("/v1/rerank", b'{"model":"m"}'),
        (CHAT, b"not json"),
        (CHAT, b"[1]"),
        (CHAT, b'{"stream_options": 7}'),
    ],
)
def test_what_cannot_stream_or_is_no_object_passes_untouched(path: str, body: bytes) -> None:
    sent = ask(path, body)
    assert (sent.shape, sent.body) == (Shape.PLAIN, body)


def test_beam_search_cannot_stream() -> None:
    sent = ask(CHAT, b'{"messages":[],"use_beam_search":true,"stream":true,"stream_options":{"include_usage":true}}')
    assert sent.shape is Shape.PLAIN
    assert json.loads(sent.body) == {"messages": [], "use_beam_search": True}
