"""Lines of a batch's input: split off whatever way the bytes come, and judged one by one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.lines import MAX_LINES, Bad, Line, Splitter, Validation, read_line
from gateway.openai.outcomes import one_line
from rewarm.files import LineError
from tests.gateway.batches_world import CHAT, line

Split = list[tuple[int, int, bytes]]


def split(*pieces: bytes, splitter: Splitter | None = None) -> Split:
    splitter = splitter or Splitter()
    out = [each for piece in pieces for each in splitter.feed(piece)]
    return out + list(splitter.finish())


def read(given: dict[str, Any] | bytes, number: int = 1, max_body: int = 1000) -> Line | Bad:
    raw = given if isinstance(given, bytes) else json.dumps(given).encode()
    return read_line(number, len(raw), raw, endpoint=CHAT, max_body=max_body, check=lambda model, body: None)


def test_lines_have_their_number_and_the_offset_behind_them() -> None:
    data = b"\xef\xbb\xbf{1}\r\n\n  \n{2}\n{3}"
    assert split(data) == [(1, 8, b"{1}"), (4, 16, b"{2}"), (5, 19, b"{3}")]


texts = st.lists(st.sampled_from([b"", b" ", b"{}", b'{"a": "\xc3\xa9"}', b"x" * 30]), max_size=8)


@given(texts, st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.data())
def test_however_the_bytes_come_and_wherever_one_goes_on(
    lines: list[bytes], end: bytes, ended: bool, data: st.DataObject
) -> None:
    whole = end.join(lines) + (end if ended else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    edges = [0, *cuts, len(whole)]
    expected = split(whole)
    assert split(*(whole[a:b] for a, b in zip(edges, [*edges[1:], None], strict=True))) == expected
    for n, (number, offset, _) in enumerate(expected, 1):
        assert split(whole[offset:], splitter=Splitter(number=number, offset=offset)) == expected[n:]


def test_a_good_line_keeps_its_body_but_for_what_makes_no_sense_in_a_batch() -> None:
    got = read(line("a", stream=True, stream_options={}, background=False, seed=1))
    assert isinstance(got, Line)
    assert (got.custom_id, got.model) == ("a", "m")
    assert json.loads(got.body) == {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "seed": 1}


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        (b"[]", "invalid_json_line", None),
        (b'{"a":', "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        ({**line("a"), "custom_id": 7}, "invalid_value", "custom_id"),
        ({**line("a"), "custom_id": "x" * 600}, "invalid_value", "custom_id"),
        ({**line("a"), "url": None}, "invalid_url", "url"),
        ({**line("a"), "body": []}, "invalid_value", "body"),
        ({**line("a"), "body": {"model": 7, "messages": []}}, "invalid_request", "body.model"),
        (line("a", "x" * 2000), "job_body_too_large", "body"),
    ],
)
def test_what_is_wrong_with_a_line(given: Any, code: str, param: str | None) -> None:
    got = read(given, number=7)
    assert isinstance(got, Bad)
    assert (got.error.code, got.error.param, got.error.line, got.number) == (code, param, 7, 7)


def test_a_file_may_have_so_many_lines_and_so_many_errors() -> None:
    seen = Validation()
    for number in range(MAX_LINES + 1):
        assert not seen.hopeless
        seen.add(Line(number, 0, str(number), "m", b""))
    assert seen.hopeless and seen.refused(skip=True)
    assert [error.code for error in seen.errors] == ["too_many_lines"]
    bad = Validation()
    for number in range(Validation.MAX_ERRORS):
        assert not bad.hopeless
        bad.add(Bad(number, 0, LineError(code="x", message="x", line=number)))
    assert bad.hopeless and bad.refused(skip=True), "a file of rubbish, not a file with bad lines"


def test_an_answer_becomes_one_line_or_is_none() -> None:
    assert one_line(b'{\n"a": "\\n"\n}') == b'{"a":"\\n"}'
    assert [one_line(each) for each in (None, b"", b"no", b"\xff")] == [None] * 4
