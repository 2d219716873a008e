"""What an upstream is sent, and what its answers mean, without any connection."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rewarm.remote import Address, Paused, body_for, error_in_event, headers, refusal, renamed_event, retry_after_s


@pytest.mark.parametrize(
    ("url", "endpoint", "target"),
    [
        ("https://api.example.com/v1", "tls:api.example.com:443", "/v1/chat/completions"),
        ("https://api.example.com:8443/openai/v1", "tls:api.example.com:8443", "/openai/v1/chat/completions"),
        ("http://127.0.0.1:9000", "tcp:127.0.0.1:9000", "/chat/completions"),
        ("http://[::1]:9000/v1", "tcp:[::1]:9000", "/v1/chat/completions"),
    ],
)
def test_our_paths_lie_below_the_base(url: str, endpoint: str, target: str) -> None:
    address = Address.of(url)
    assert (address.endpoint, address.target("/v1/chat/completions")) == (endpoint, target)


def test_a_body_keeps_every_byte_but_the_models_name_and_our_own_fields() -> None:
    body = b'{"model": "far", "temperature": 1.50, "x": {"model": "far"}}'
    assert body_for(body, "theirs") == b'{"model": "theirs", "temperature": 1.50, "x": {"model": "far"}}'
    assert json.loads(body_for(b'{"model":"far","keep_alive":"5m","n":1}', "theirs")) == {"model": "theirs", "n": 1}


def test_only_the_key_says_who_we_are() -> None:
    sent = dict(headers("secret", stream=True))
    assert sent[b"Authorization"] == b"Bearer secret" and sent[b"Accept"] == b"text/event-stream"
    assert b"Authorization" not in dict(headers(None, stream=False))


@pytest.mark.parametrize(
    ("status", "answer", "code"),
    [
        (200, {"content-type": "application/json; charset=utf-8"}, None),
        (200, {"content-type": "text/event-stream"}, None),
        (400, {"content-type": "application/json"}, None),
        (200, {"content-type": "text/html"}, "upstream_bad_answer"),
        (200, {}, "upstream_bad_answer"),
        (401, {}, "upstream_refused_key"),
        (403, {"content-type": "application/json"}, "upstream_refused_key"),
        (404, {"content-type": "application/json"}, "upstream_bad_answer"),
        (307, {"location": "https://elsewhere.example/secret"}, "upstream_redirected"),
        (429, {}, "upstream_rate_limited"),
        (408, {}, "upstream_failed"),
        (529, {}, "upstream_failed"),
    ],
)
def test_what_an_answer_amounts_to(status: int, answer: dict[str, str], code: str | None) -> None:
    found = refusal("far", status, answer)
    assert (found.code if found else None) == code
    assert found is None or "secret" not in found.message


def test_a_pause_is_asked_for_in_seconds_or_until_a_date() -> None:
    now = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
    assert retry_after_s("7") == 7.0
    assert retry_after_s("Thu, 01 Jan 2026 12:01:00 GMT", now) == 60.0
    assert retry_after_s("Thu, 01 Jan 2026 11:00:00 GMT", now) == 0.0
    assert retry_after_s("soon") is None and retry_after_s(None) is None
    found = refusal("far", 429, {"retry-after": "7"})
    assert isinstance(found, Paused) and found.wait_s == 7.0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"error": {"message": "slow down", "code": 429}}', "upstream_rate_limited"),
        (b'{"error": {"message": "x", "type": "authentication_error"}}', "upstream_refused_key"),
        (b'{"error": {"message": "overloaded"}}', "upstream_failed"),
        (b'{"error": "it broke"}', "upstream_failed"),
        (b'{"choices": [{"delta": {"content": "an \\"error\\" in words"}}]}', None),
        (b'{"choices": [], "error": null}', None),
    ],
)
def test_an_error_among_the_events(data: bytes, code: str | None) -> None:
    found = error_in_event("far", data)
    assert (found.code if found else None) == code


def test_every_event_has_our_name_for_the_model() -> None:
    chunk = b'data: {"id":"1","model":"theirs","choices":[{"delta":{"content":"\\"model\\": x"}}]}\n\n'
    assert json.loads(renamed_event(chunk, "far")[6:])["model"] == "far"
    typed = b'event: response.created\ndata: {"type":"response.created","response":{"model":"theirs","id":"r"}}\n\n'
    renamed = renamed_event(typed, "far")
    assert renamed.startswith(b"event: response.created\n") and b'"model":"far"' in renamed
    assert renamed_event(b"data: [DONE]\n\n", "far") == b"data: [DONE]\n\n"
