"""``keep_alive`` as Ollama takes it."""

from __future__ import annotations

import pytest

from gateway.parse import ENDPOINTS, keep_alive_s, peek
from rewarm.errors import InvalidRequest


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0.0, 0),
        (-1.0, -1),
        (600.0, 600),
        ("0", 0),
        ("-1", -1),
        ("90", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("-1m", -1),  # any negative one is for ever
    ],
)
def test_seconds_or_a_duration(value: float | str | None, seconds: float | None) -> None:
    assert keep_alive_s(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "10 m", "5d", "m", "nan", "inf", "1h xx"])
def test_what_is_neither_is_refused_with_its_name(value: str) -> None:
    with pytest.raises(InvalidRequest, match="keep_alive"):
        keep_alive_s(value)


def test_it_is_read_from_the_body_and_a_wrong_type_refused() -> None:
    chat = ENDPOINTS["/v1/chat/completions"]
    seen = peek(b'{"model": "m", "messages": [], "keep_alive": 0}', chat)
    assert keep_alive_s(seen.keep_alive) == 0
    with pytest.raises(InvalidRequest, match="keep_alive"):
        peek(b'{"model": "m", "messages": [], "keep_alive": {}}', chat)
