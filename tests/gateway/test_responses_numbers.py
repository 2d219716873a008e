"""Every event of a response has one number for ever, whoever reads it, wherever, and however often it began anew."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.openai.numbering import Numbered, Numbering, events_in
from tests.gateway.responses_world import SAID, recorded

RESPONSE = {"id": "resp_1", "object": "response", "status": "queued", "output": []}


def numbered(*chunks: tuple[int, bytes], end: bool = True) -> list[Numbered]:
    """The whole stream for chunks of (attempt, data)."""
    numbering = Numbering(RESPONSE)
    out = list(numbering.begin())
    for attempt, data in chunks:
        out += numbering.feed(attempt, data)
    if end:
        out.append(numbering.end("response.completed", {**RESPONSE, "status": "completed"}))
    return out


def events(stream: list[Numbered]) -> list[dict[str, Any]]:
    return [event for one in stream for event in events_in(one.data)]


def kinds(stream: list[Numbered]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events(stream)]


def test_an_undisturbed_answer_of_vllm() -> None:
    stream = numbered((1, b"".join(recorded())))
    assert kinds(stream) == [
        "created",
        "queued",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 8,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [one.number for one in stream] == [e["sequence_number"] for e in events(stream)] == list(range(len(stream)))
    assert all(e["response"]["id"] == "resp_1" for e in events(stream) if "response" in e), "not the engine's own id"
    assert "".join(e.get("delta", "") for e in events(stream)) == SAID
    assert all(one.data.startswith(b"event: response.") and one.data.endswith(b"\n\n") for one in stream)


def test_the_engine_s_last_event_waits_for_the_job_s() -> None:
    """A worker that dies between its last chunk and the end of the job runs it again: one end, not two."""
    whole = b"".join(recorded())
    stream = numbered((1, whole), (2, whole))
    assert kinds(stream).count("completed") == 1
    assert kinds(stream).count("created") == 1


def test_a_restart_gives_up_what_was_open_and_begins_after_it() -> None:
    half, whole = b"".join(recorded()[:7]), b"".join(recorded())
    stream = numbered((1, half), (2, whole))
    told = events(stream)
    assert [one.number for one in stream] == list(range(len(stream)))
    at = next(n for n, e in enumerate(told) if "rewarm" in e)
    assert told[at]["type"] == "response.in_progress"
    assert told[at]["rewarm"] == {"restarted": True, "attempt": 2}
    given_up = told[at - 1]
    assert given_up["type"] == "response.output_item.done"
    assert given_up["item"]["status"] == "incomplete"
    assert given_up["item"]["content"][0]["text"] == "Hello there,"
    assert {e["output_index"] for e in told[:at] if "output_index" in e} == {0}
    assert {e["output_index"] for e in told[at:] if "output_index" in e} == {1}
    assert kinds(stream)[at:].count("in_progress") == 1, "the engine's own is left out"
    assert "".join(e.get("delta", "") for e in told[at:]) == SAID


def test_an_attempt_that_said_nothing_leaves_no_trace() -> None:
    whole = b"".join(recorded())
    assert numbered((3, whole)) == numbered((1, whole))


def test_what_is_no_event_is_left_out() -> None:
    noise = b": comment\n\ndata: [DONE]\n\ndata: 7\n\nevent: x\n\n"
    assert numbered((1, noise + b"".join(recorded()))) == numbered((1, b"".join(recorded())))


def test_an_end_after_the_output_is_gone_has_a_number_that_is_new_to_the_reader() -> None:
    numbering = Numbering(RESPONSE)
    list(numbering.begin())
    assert numbering.end("response.completed", RESPONSE, after=17).number == 18


@given(st.data())
def test_however_the_chunks_are_cut_the_numbers_are_the_same(data: st.DataObject) -> None:
    cuts = st.lists(st.integers(0, len(recorded())), max_size=5).map(sorted)
    attempts = [data.draw(st.integers(0, len(recorded())), "events of the first attempt"), len(recorded())]

    def chunks(cut: bool) -> list[tuple[int, bytes]]:
        out = []
        for attempt, count in enumerate(attempts, 1):
            said = recorded()[:count]
            places = [0, *(n for n in (data.draw(cuts) if cut else []) if n < count), count]
            pieces = [b"".join(said[a:b]) for a, b in pairwise(places)]
            out += [(attempt, piece) for piece in pieces if piece]
        return out

    assert numbered(*chunks(cut=True)) == numbered(*chunks(cut=False))
