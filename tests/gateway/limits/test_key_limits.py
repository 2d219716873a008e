"""The limits of a key: what a request counts as before it is answered, and afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.limits import KeyLimits, UsageTap
from rewarm.config import KeyConfig
from rewarm.errors import KeyLimitExceeded, RateLimitExceeded

CHAT = "/v1/chat/completions"


def limits(**fields: Any) -> KeyLimits:
    found = KeyLimits("k")
    found.configure(KeyConfig(name="k", sha256="0" * 64, **fields))
    return found


def body(text: str = "x" * 40, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def test_without_limits_nothing_is_read_or_counted() -> None:
    assert limits().admit(CHAT, b"not even JSON", 0) is None


def test_requests_a_minute_are_refused_with_the_time_to_wait() -> None:
    key = limits(requests_per_minute=2)
    key.admit(CHAT, body(), 1_000)
    key.admit(CHAT, body(), 21_000)
    with pytest.raises(RateLimitExceeded, match="may spend 2 requests a minute; 0 are left") as refused:
        key.admit(CHAT, body(), 31_000)
    headers = refused.value.headers()
    assert headers["Retry-After"] == "30"
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert key.admit(CHAT, body(), 61_000) is not None


def test_tokens_are_the_prompt_and_what_is_asked_until_the_answer_says_what_it_took() -> None:
    key = limits(tokens_per_minute=100)
    assert key.tokens is not None
    charge = key.admit(CHAT, body(max_tokens=60), 0)
    assert charge is not None
    assert key.tokens.used(0) == 70, "40 bytes are about 10 tokens"
    charge.tap.feed(b'{"usage":{"prompt_tokens":12,"completion_tokens":8,"total_tokens":20}}')
    key.settle(charge, answered=True, now_ms=5_000)
    assert key.tokens.used(5) == 20


def test_a_request_that_was_never_answered_took_no_tokens() -> None:
    key = limits(tokens_per_minute=100, requests_per_minute=5)
    assert key.tokens is not None
    assert key.requests is not None
    charge = key.admit(CHAT, body(max_tokens=60), 0)
    assert charge is not None
    key.settle(charge, answered=False, now_ms=1_000)
    assert (key.tokens.used(1), key.requests.used(1)) == (0, 1)


def test_a_refused_request_has_spent_nothing() -> None:
    key = limits(requests_per_minute=10, tokens_per_minute=100)
    assert key.requests is not None
    key.admit(CHAT, body(max_tokens=60), 0)
    with pytest.raises(RateLimitExceeded, match="tokens a minute; 30 are left, this request takes 70"):
        key.admit(CHAT, body(max_tokens=60), 1_000)
    assert key.requests.used(1) == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_output_tokens": 50}, "an answer of up to 60 tokens; the key 'k' has max_output_tokens 50"),
        ({"max_context": 65}, "a context of about 70 tokens; the key 'k' has max_context 65"),
        ({"tokens_per_minute": 65}, "about 70 tokens; the key 'k' has tokens_per_minute 65"),
    ],
)
def test_what_could_never_pass_is_a_bad_request_not_a_wait(fields: dict[str, int], told: str) -> None:
    key = limits(**fields)
    with pytest.raises(KeyLimitExceeded, match=told):
        key.admit(CHAT, body(max_tokens=60), 0)


def test_a_new_limit_keeps_what_was_spent() -> None:
    key = limits(requests_per_minute=10)
    for _ in range(4):
        key.admit(CHAT, body(), 0)
    key.configure(KeyConfig(name="k", sha256="0" * 64, requests_per_minute=4))
    with pytest.raises(RateLimitExceeded):
        key.admit(CHAT, body(), 0)


class TestUsageOfAnAnswer:
    def test_of_a_stream_that_says_nothing_each_event_is_a_token(self) -> None:
        tap = UsageTap(estimated=10)
        for chunk in (b'data: {"a":1}\n\nda', b'ta: {"a":2}\n\n', b"data: [DONE]\n\n"):
            tap.feed(chunk)
        assert tap.total == 13

    def test_the_engines_own_count_is_found_wherever_the_stream_is_cut(self) -> None:
        whole = b'data: {"choices":[],"usage":{"prompt_tokens":3,"total_tokens": 1234}}\n\ndata: [DONE]\n\n'
        for cut in range(len(whole)):
            tap = UsageTap(estimated=10)
            tap.feed(whole[:cut])
            tap.feed(whole[cut:])
            assert tap.total == 1234, cut

    def test_what_a_model_writes_is_not_taken_for_a_count(self) -> None:
        tap = UsageTap(estimated=10)
        tap.feed(b'data: {"choices":[{"delta":{"content":"{\\"total_tokens\\": 9}"}}]}\n\n')
        assert tap.total == 11
