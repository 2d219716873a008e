"""A stream's chunks become the answer that the same request would have got without `stream`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.jobs.ask import Ask, Shape
from worker.jobs.assemble import Assembler, EngineSaid, NotAChunk, assembler
from worker.jobs.sse import Event, EventReader, EventTooLarge

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", "system_fingerprint": "f"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chunk(*choices: dict[str, Any], **more: Any) -> Event:
    return Event("", json.dumps({**HEAD, "choices": list(choices), **more}).encode())


def delta(index: int = 0, finish: str | None = None, logprobs: Any = None, **fields: Any) -> dict[str, Any]:
    return {"index": index, "delta": fields, "logprobs": logprobs, "finish_reason": finish}


DONE = Event("", b"[DONE]")


def fed(*events: Event, shape: Shape = Shape.CHAT, shows_usage: bool = False) -> Assembler:
    parts = assembler(Ask(b"", shape, shows_usage))
    for event in events:
        parts.feed(event)
    return parts


def test_a_chat() -> None:
    parts = fed(
        chunk(delta(role="assistant", content="")),
        chunk(delta(content="Hello")),
        chunk(delta(content=" world")),
        chunk(delta(finish="stop")),
        chunk(usage=USAGE),
        DONE,
    )
    assert parts.whole
    assert parts.tokens == 2
    assert parts.answer() == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "system_fingerprint": "f",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


def test_without_its_end_it_is_not_whole() -> None:
    assert not fed(chunk(delta(content="Hello", finish="stop"))).whole


def test_several_choices_come_mixed_and_leave_in_order() -> None:
    parts = fed(
        chunk(delta(1, content="b1"), delta(0, content="a1")),
        chunk(delta(1, content="b2", finish="length")),
        chunk(delta(0, content="a2", finish="stop")),
        DONE,
    )
    choices = parts.answer()["choices"]
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in choices] == [
        (0, "a1a2", "stop"),
        (1, "b1b2", "length"),
    ]
    assert parts.tokens == 4


def test_tool_calls_are_put_together_by_their_index() -> None:
    def call(index: int, **fields: Any) -> dict[str, Any]:
        return {"index": index, **fields}

    parts = fed(
        chunk(delta(role="assistant", content=None)),
        chunk(delta(tool_calls=[call(0, id="c1", type="function", function={"name": "f", "arguments": ""})])),
        chunk(delta(tool_calls=[call(0, function={"arguments": '{"x"'})])),
        chunk(delta(tool_calls=[call(1, id="c2", type="function", function={"name": "g", "arguments": "{"})])),
        chunk(delta(tool_calls=[call(0, function={"arguments": ":1}"}), call(1, function={"arguments": "}"})])),
        chunk(delta(finish="tool_calls")),
        DONE,
    )
    choice = parts.answer()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_log_probabilities_are_one_list_and_count_the_tokens() -> None:
    def listed(*tokens: str) -> dict[str, Any]:
        return {"content": [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]}

    parts = fed(
        chunk(delta(content="ab", logprobs=listed("a", "b"))),
        chunk(delta(content="c", logprobs=listed("c"))),
        chunk(delta(finish="stop")),
        DONE,
    )
    assert [entry["token"] for entry in parts.answer()["choices"][0]["logprobs"]["content"]] == ["a", "b", "c"]
    assert parts.tokens == 3


def test_reasoning_and_fields_that_we_do_not_know_are_kept() -> None:
    parts = fed(
        chunk(delta(reasoning_content="I th")),
        chunk(delta(reasoning_content="ink", role="assistant")),
        chunk({**delta(content="so", finish="stop"), "stop_reason": 42}, kv_transfer_params={"x": 1}),
        DONE,
    )
    answer = parts.answer()
    assert answer["choices"][0]["message"]["reasoning_content"] == "I think"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["stop_reason"] == 42
    assert answer["kv_transfer_params"] == {"x": 1}


def test_a_completion() -> None:
    def piece(text: str, finish: str | None = None, logprobs: Any = None) -> Event:
        return chunk(
            {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}, object="text_completion"
        )

    one = {"tokens": ["He"], "token_logprobs": [-1.0], "top_logprobs": [None], "text_offset": [0]}
    two = {"tokens": ["y"], "token_logprobs": [-2.0], "top_logprobs": [None], "text_offset": [2]}
    parts = fed(piece("He", logprobs=one), piece("y", "stop", two), chunk(usage=USAGE), DONE, shape=Shape.COMPLETION)
    answer = parts.answer()
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "Hey",
            "logprobs": {
                "tokens": ["He", "y"],
                "token_logprobs": [-1.0, -2.0],
                "top_logprobs": [None, None],
                "text_offset": [0, 2],
            },
            "finish_reason": "stop",
        }
    ]


def test_a_response_is_what_its_last_event_says() -> None:
    def said(kind: str, **fields: Any) -> Event:
        return Event(kind, json.dumps({"type": kind, **fields}).encode())

    whole = {"object": "response", "status": "completed", "usage": {"input_tokens": 1, "output_tokens": 5}}
    parts = fed(
        said("response.created", response={"status": "in_progress"}),
        said("response.output_text.delta", delta="x"),
        said("response.completed", response=whole),
        shape=Shape.RESPONSE,
    )
    assert parts.whole
    assert parts.answer() == whole
    assert parts.tokens == 5
    assert not fed(said("response.output_text.delta", delta="x"), shape=Shape.RESPONSE).whole


# --- what the job's output shows -------------------------------------------------------------------------------------


def test_events_go_into_the_output_as_they_came() -> None:
    event = chunk(delta(content="x"))
    assert assembler(Ask(b"", Shape.CHAT)).feed(event) == b"data: " + event.data + b"\n\n"
    named = Event("response.created", b'{"type":"response.created"}')
    assert assembler(Ask(b"", Shape.RESPONSE)).feed(named) == b"event: response.created\ndata: " + named.data + b"\n\n"


def test_usage_that_only_we_asked_for_is_taken_out_again() -> None:
    parts = assembler(Ask(b"", Shape.CHAT))
    assert parts.feed(chunk(usage=USAGE)) == b""
    beside = parts.feed(chunk(delta(content="x"), usage=None))
    assert "usage" not in json.loads(beside[6:])
    assert json.loads(beside[6:])["choices"][0]["delta"] == {"content": "x"}
    asked = assembler(Ask(b"", Shape.CHAT, shows_usage=True))
    assert json.loads(asked.feed(chunk(usage=USAGE))[6:])["usage"] == USAGE


def test_done_is_not_output() -> None:
    assert assembler(Ask(b"", Shape.CHAT)).feed(DONE) == b""


# --- what is no answer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"), [({"message": "no", "code": 400}, 400), ({"message": "no", "code": "x"}, 500)]
)
def test_an_error_in_the_stream_is_the_engines_error(error: dict[str, Any], status: int) -> None:
    with pytest.raises(EngineSaid) as raised:
        fed(chunk(delta(content="x")), Event("", json.dumps({"error": error}).encode()))
    assert raised.value.status == status
    assert raised.value.error == error


def test_an_answer_that_the_engine_gave_up_is_no_answer_however_cleanly_it_ends() -> None:
    with pytest.raises(EngineSaid):
        fed(chunk(delta(content="x")), chunk(delta(finish="abort")), DONE)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"object":"x"}', b'{"choices":[1]}', b"\xff"])
def test_what_is_no_chunk_is_told_as_such(data: bytes) -> None:
    with pytest.raises(NotAChunk):
        fed(Event("", data))


# --- the bytes -------------------------------------------------------------------------------------------------------


@given(st.data())
def test_events_are_the_same_however_the_bytes_are_cut(data: st.DataObject) -> None:
    raw = b": hello\r\n\r\nevent: a\r\ndata: 1\r\n\r\ndata: {\ndata: }\n\n\n\ndata:x\n\ndata: [DONE]"
    reader, out, rest = EventReader(), [], raw
    while rest:
        n = data.draw(st.integers(1, len(rest)))
        out += reader.feed(rest[:n])
        rest = rest[n:]
    out += reader.end()
    assert out == [Event("a", b"1"), Event("", b"{\n}"), Event("", b"x"), Event("", b"[DONE]")]


def test_half_an_event_at_the_end_is_no_event() -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"choices"') == []
    assert reader.end() == []


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader()
    for _ in range(8):
        reader.feed(b"x" * (2**20 - 1))
    with pytest.raises(EventTooLarge):
        reader.feed(b"x" * 2**20)
