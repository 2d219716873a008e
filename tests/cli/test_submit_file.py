"""`rewarm submit` without a gateway: what a line may be, what is kept beside the output, what makes a key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewarm.cli.sse import Event, events
from rewarm.cli.submit_file import Input, read_file, read_line
from rewarm.cli.submit_output import Output
from rewarm.cli.submit_run import idempotency_key
from rewarm.errors import CommandRefused, InputInvalid

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "ü"}]}


def written(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "in.jsonl"
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


# --- lines -----------------------------------------------------------------------------------------------------------


def test_a_line_is_a_plain_body() -> None:
    raw = json.dumps(BODY).encode()
    request = read_line(raw + b"\n", CHAT)
    assert (request.endpoint, request.body, request.model, request.custom_id) == (CHAT, raw, "m", None)


def test_or_a_line_of_the_batch_format() -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "x"}}
    request = read_line(json.dumps(line).encode(), CHAT)
    assert (request.endpoint, request.custom_id) == ("/v1/completions", "a")
    assert json.loads(request.body) == {"model": "m", "prompt": "x"}


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"model": "m"} {}', "not JSON"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"{}", "`model` is missing"),
        (b'{"model": ""}', "`model` is missing"),
        (b'{"model": 3}', "`model` must be text"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/x"}', "`body` is missing"),
        (b'{"custom_id": "a", "url": "/v1/x", "body": []}', "`body` must be an object"),
        (b'{"custom_id": "a", "url": "/v1/x", "body": {}}', "`body.model` is missing"),
        (b'{"custom_id": "a", "method": "GET", "url": "/v1/x", "body": {"model": "m"}}', "must be POST"),
        (b'{"custom_id": "a", "url": "http://x/", "body": {"model": "m"}}', "endpoint's path"),
        (b'{"custom_id": "", "body": {"model": "m"}}', "`custom_id` must have"),
        (b'{"custom_id": 1, "body": {"model": "m"}}', "`custom_id` must be text"),
        (b'{"priority": "low", "body": {"model": "m"}}', "`priority` has no place"),
        (b'{"model": "m", "x": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not JSON"),
    ],
)
def test_everything_else_is_explained(raw: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_line(raw, CHAT)


def test_every_bad_line_is_reported_by_its_number(tmp_path: Path) -> None:
    same = {"custom_id": "a", "body": BODY}
    path = written(tmp_path, BODY, b"", b"{", same, b"  ", same, {**BODY, "model": "other"}, BODY)
    given = read_file(path, CHAT, models={"m"})
    assert [line.number for line in given.lines] == [1, 4, 8]
    assert [str(bad).partition(" at byte")[0] for bad in given.bad] == [
        "line 3: not JSON: Input data was truncated",
        "line 6: the `custom_id` 'a' is that of line 4 as well",
        "line 7: no model is named 'other'",
    ]
    with given.open() as file:
        assert [Input.read(file, line, CHAT).custom_id for line in given.lines] == [None, "a", None]


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, BODY)
    given = read_file(path, CHAT)
    path.write_text(json.dumps({**BODY, "model": "x"}) + "\n")
    with given.open() as file, pytest.raises(InputInvalid, match="line 1"):
        Input.read(file, given.lines[0], CHAT)


def test_a_key_is_of_the_file_the_run_and_the_line() -> None:
    keys = {idempotency_key(sha, name, line) for sha in ("a", "b") for name in ("", "x") for line in (1, 11)}
    assert len(keys) == 8
    assert idempotency_key("a", "", 1) == idempotency_key("a", "", 1)
    assert all(len(key) <= 255 for key in keys)


# --- what is kept ----------------------------------------------------------------------------------------------------

RUN = {"file": "sha", "run": ""}


def row(line: int, status: str = "completed") -> dict[str, Any]:
    return {"line": line, "status": status}


def test_a_broken_run_is_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Output(out, RUN, keep_state=True) as output:
        output.accepted(1, "job_1")
        output.accepted(2, "job_2")
        output.resume([1, 2, 3])
        output.write(row(1))
    assert not out.exists(), "never half a file"
    with Output(out, RUN, keep_state=True) as again:
        assert again.ids == {1: "job_1", 2: "job_2"}
        again.resume([1, 2, 3])
        assert again.written == 1
        again.write(row(2, "failed"))
        again.write(row(3))
        again.complete()
    assert [json.loads(line)["line"] for line in out.read_text().splitlines()] == [1, 2, 3]
    assert again.failures == {"completed": 2, "failed": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl"]


def test_what_was_torn_by_a_crash_is_written_anew(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Output(out, RUN, keep_state=True) as output:
        output.accepted(1, "job_1")
        output.resume([1, 2])
        output.write(row(1))
    for path in (output.part, output.state):
        with path.open("ab") as file:
            file.write(b'{"line": 2, "id": "jo')
    with Output(out, RUN, keep_state=True) as again:
        assert again.ids == {1: "job_1"}
        again.accepted(2, "job_2")
        again.resume([1, 2])
        assert again.written == 1
        again.write(row(2))
    with Output(out, RUN, keep_state=True) as third:
        assert third.ids == {1: "job_1", 2: "job_2"}
        third.resume([1, 2])
        assert third.written == 2


def test_another_run_takes_nothing_over(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("older\n")
    with Output(out, RUN, keep_state=True) as output:
        output.accepted(1, "job_1")
        output.resume([1])
        output.write(row(1))
    with Output(out, {**RUN, "run": "second"}, keep_state=True) as other:
        other.resume([1])
        assert (other.ids, other.written) == ({}, 0)
    assert out.read_text() == "older\n", "until the new one is complete"


def test_two_runs_cannot_write_the_same_output(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Output(out, RUN, keep_state=True):
        with pytest.raises(CommandRefused, match="another"), Output(out, RUN, keep_state=True):
            pass


def test_without_state_nothing_of_it_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with Output(out, RUN, keep_state=False) as output:
        output.accepted(1, "job_1")
        assert not output.state.exists()
        output.abandon()
    with Output(tmp_path / "none.jsonl", RUN, keep_state=True) as empty:
        empty.abandon()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl.part"]


# --- events ----------------------------------------------------------------------------------------------------------


def test_events_come_out_of_lines() -> None:
    lines = [
        b": hello\n",
        b"event: status\r\n",
        b'data: {"a":\r\n',
        b"data: 1}\r\n",
        b"\r\n",
        b"id: 1-2\n",
        b"data:x\n",
    ]
    lines += [b": keep-alive\n", b"\n", b"\n", b"event: cut\n", b"data: never ended\n"]
    assert list(events(lines)) == [Event("status", '{"a":\n1}', None), Event("", "x", "1-2")]
