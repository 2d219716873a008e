"""What a request needs of the model that answers it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.needs import needs_of, obstacle
from rewarm.messages import Capabilities

TEXT = [{"role": "user", "content": "Hi"}]


def needs(path: str = "/v1/chat/completions", **body: Any):  # type: ignore[no-untyped-def]
    return needs_of(path, json.dumps({"model": "m", **body}).encode())


@pytest.mark.parametrize(
    ("path", "body", "needed"),
    [
        ("/v1/chat/completions", {"messages": TEXT}, {"chat"}),
        ("/v1/completions", {"prompt": "Hi"}, {"completions"}),
        ("/v1/embeddings", {"input": "Hi"}, {"embeddings"}),
        ("/v1/chat/completions", {"messages": TEXT, "tools": [{"type": "function"}]}, {"chat", "tools"}),
        ("/v1/chat/completions", {"messages": TEXT, "tools": []}, {"chat"}),
        ("/v1/chat/completions", {"messages": TEXT, "response_format": {"type": "text"}}, {"chat"}),
        (
            "/v1/chat/completions",
            {"messages": TEXT, "response_format": {"type": "json_object"}},
            {"chat", "response_format"},
        ),
        (
            "/v1/responses",
            {"input": "Hi", "text": {"format": {"type": "json_schema"}}},
            {"responses", "response_format"},
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:…"}]}]},
            {"responses", "images"},
        ),
    ],
)
def test_what_is_needed_is_read_from_the_body(path: str, body: dict[str, Any], needed: set[str]) -> None:
    assert needs(path, **body).capabilities == needed


def test_an_image_is_no_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    assert needs(messages=[{"role": "user", "content": [image]}]).prompt_tokens < 10


def test_prompt_and_answer_together_have_to_fit() -> None:
    asked = needs(messages=[{"role": "user", "content": "word " * 800}], max_tokens=100)
    assert 1000 <= asked.tokens <= 1110
    assert obstacle(asked, Capabilities(context_length=1000)) == (
        f"its context has 1000 tokens, the request needs about {asked.tokens}"
    )
    assert obstacle(asked, Capabilities(context_length=2000)) == ""
    assert needs("/v1/completions", prompt=[1, 2, 3] * 100).prompt_tokens == 300


def test_what_is_missing_is_named_and_the_unknown_is_taken_for_able() -> None:
    asked = needs(messages=TEXT, tools=[{"type": "function"}], response_format={"type": "json_object"})
    assert obstacle(asked, Capabilities(can=("chat",))) == "does not do a response format or tools"
    assert obstacle(asked, Capabilities()) == ""
