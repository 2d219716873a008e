"""What a waiting client reads, as pure functions of progress, time and the engine's bytes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import (
    NEVER,
    Chunks,
    EventFramer,
    PlainCadence,
    RoleStripper,
    SilentCadence,
    StreamCadence,
    Timings,
    comment,
    error_event,
)
from rewarm.messages import Progress
from rewarm.states import ReplicaState


def chunks(chat: bool = True) -> Chunks:
    return Chunks(chat=chat, request_id="req-1", model="m", created_s=7)


def payload(event: bytes) -> Any:
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    return json.loads(event[6:])


def progress(fraction: float, **fields: Any) -> Progress:
    return Progress(model="m", phase=ReplicaState.RESTORING, fraction=fraction, **fields)


class TestPieces:
    def test_a_comment_is_one_ascii_line_with_a_single_line_feed(self) -> None:
        told = progress(0.421, bytes_done=5, bytes_total=10, eta_s=2.6, queue_position=3, attempt=2)
        line = comment(told, "waiting")
        assert line == b": loading 42.1% phase=restoring bytes=5/10 eta_s=3 position=3 attempt=2\n"
        assert comment(None, "waiting") == b": waiting\n"

    def test_the_first_no_op_chunk_of_a_chat_carries_the_role_and_later_ones_do_not(self) -> None:
        some = chunks()
        first, second = payload(some.no_op()), payload(some.no_op({"state": "running"}))
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert second["choices"][0]["delta"] == {"content": ""}
        assert second["rewarm"] == {"state": "running"}
        assert first["object"] == "chat.completion.chunk"

    def test_completions_have_text_and_no_role(self) -> None:
        choice = payload(chunks(chat=False).no_op())["choices"][0]
        assert choice["text"] == "" and "delta" not in choice

    def test_an_error_event_has_the_error_first_and_no_choices(self) -> None:
        assert list(payload(error_event({"message": "x", "code": "worker_died"}))) == ["error"]


class TestCadence:
    TIMINGS = Timings()

    def test_the_status_line_waits_two_seconds_then_no_gap_is_over_five(self) -> None:
        cadence = StreamCadence(100.0, self.TIMINGS, chunks(), "comments")
        assert cadence.poll(101.9, None, "waiting") == b""
        signs, now = [], 100.0
        while now < 220:
            if cadence.poll(now, None, "waiting"):
                signs.append(now)
            now += 0.25
        assert signs[0] == 102.0
        assert max(b - a for a, b in pairwise(signs)) <= 4.25

    def test_a_no_op_chunk_comes_by_25_s_and_then_at_least_every_60(self) -> None:
        cadence = StreamCadence(0.0, self.TIMINGS, chunks(), "comments")
        at = [n / 4 for n in range(4 * 300) if b"data: " in cadence.poll(n / 4, None, "waiting")]
        assert at[0] <= 25
        assert max(b - a for a, b in pairwise(at)) <= 60

    def test_a_changed_fraction_is_shown_soon_but_not_more_than_once_a_second(self) -> None:
        cadence = StreamCadence(0.0, self.TIMINGS, chunks(), "comments")
        shown = [n / 10 for n in range(100) if cadence.poll(n / 10, progress(n / 100), "waiting")]
        assert shown[0] == 2.0
        assert min(b - a for a, b in pairwise(shown)) >= 0.99
        assert len(shown) >= 7

    @given(st.lists(st.floats(0, 1), max_size=30))
    def test_the_fraction_never_goes_back(self, fractions: list[float]) -> None:
        cadence = StreamCadence(0.0, self.TIMINGS, chunks(), "chunks")
        seen = []
        for n, fraction in enumerate(fractions):
            if event := cadence.poll(2.0 + n * 5, progress(fraction), "waiting"):
                seen.append(payload(event)["rewarm"]["fraction"])
        assert seen == sorted(seen)

    def test_padding_begins_late_and_goes_on(self) -> None:
        cadence = PlainCadence(0.0, self.TIMINGS)
        assert [n for n in range(60) if cadence.poll(n, None, "")] == [15, 25, 35, 45, 55]

    def test_silence(self) -> None:
        cadence = SilentCadence()
        assert cadence.due() == NEVER
        assert cadence.poll(1e9, progress(0.5), "waiting") == b""

    @given(st.lists(st.floats(0, 600), min_size=1), st.sampled_from(["comments", "chunks"]))
    def test_due_never_lies_in_the_past_after_a_poll(self, times: list[float], mode: Any) -> None:
        cadence = StreamCadence(0.0, self.TIMINGS, chunks(), mode)
        for now in sorted(times):
            if cadence.poll(now, None, "waiting"):
                assert cadence.due() > now


DELTAS: list[dict[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"content": "Hello"},
    {"content": "data: [DONE]\n\n \\u2028"},
    {"reasoning_content": "role"},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"role": 1}'}}]},
]


def events(deltas: list[dict[str, Any]], newline: bytes, done: bool, index: int = 0) -> bytes:
    out = b""
    for delta in deltas:
        choice = {"index": index, "delta": delta, "finish_reason": None}
        out += b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + newline * 2
    return out + (b"data: [DONE]" + newline * 2 if done else b"")


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


STREAMS = st.builds(
    events, st.lists(st.sampled_from(DELTAS), max_size=6), st.sampled_from([b"\n", b"\r\n"]), st.booleans()
)
CUTS = st.lists(st.integers(0, 10_000), max_size=12)


class TestFraming:
    @given(STREAMS, CUTS)
    def test_however_the_bytes_are_cut_the_client_gets_the_same(self, data: bytes, cuts: list[int]) -> None:
        framer = EventFramer()
        pieces = [framer.feed(piece) for piece in split(data, cuts)]
        assert b"".join([*pieces, framer.finish()]) == data
        assert framer.done == data.rstrip().endswith(b"data: [DONE]")
        assert all(piece == b"" or piece.endswith((b"\n\n", b"\r\n\r\n")) for piece in pieces)

    @given(STREAMS, CUTS, st.integers(1, 40))
    def test_half_an_event_never_reaches_the_client(self, data: bytes, cuts: list[int], missing: int) -> None:
        framer = EventFramer()
        out = b"".join(framer.feed(piece) for piece in split(data[:-missing], cuts))
        assert out == b"" or out.endswith((b"\n\n", b"\r\n\r\n"))
        assert data.startswith(out)

    def test_a_last_event_without_its_blank_line_is_completed(self) -> None:
        framer = EventFramer()
        framer.feed(b'data: {"a": 1}\n\ndata: [DONE]\n')
        assert framer.finish() == b"data: [DONE]\n\n"
        assert framer.done

    def test_a_whole_event_passes_without_a_copy(self) -> None:
        event = events([{"content": "x"}], b"\n", False)
        assert EventFramer().feed(event) is event


class TestRoles:
    @given(st.lists(st.sampled_from(DELTAS), max_size=6), st.sampled_from([b"\n", b"\r\n"]), CUTS)
    def test_the_role_goes_exactly_once_however_the_bytes_are_cut(
        self, deltas: list[dict[str, Any]], newline: bytes, cuts: list[int]
    ) -> None:
        deltas = [{"role": "assistant", "content": ""}, *deltas]
        framer, stripper = EventFramer(), RoleStripper()
        out = b"".join(stripper.feed(framer.feed(piece)) for piece in split(events(deltas, newline, True), cuts))
        got = [json.loads(line[6:]) for line in out.splitlines() if line.startswith(b"data: {")]
        assert [chunk["choices"][0]["delta"] for chunk in got] == [{"content": ""}, *deltas[1:]]
        assert stripper.done

    def test_everything_else_of_the_chunk_stays(self) -> None:
        chunk = b'data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}],"z":1.5}\n\n'
        assert RoleStripper().feed(chunk) == chunk.replace(b'"role":"assistant",', b"")

    def test_another_choice_keeps_its_role(self) -> None:
        other = events([{"role": "assistant", "content": ""}], b"\n", False, index=1)
        stripper = RoleStripper()
        assert stripper.feed(other) == other
        assert not stripper.done

    @pytest.mark.parametrize(
        "event", [b"data: nonsense\n\n", b": comment\n\n", b'data: {"choices": []}\n\n', b"data: 1\n\n"]
    )
    def test_what_is_no_chunk_passes(self, event: bytes) -> None:
        assert RoleStripper().feed(event) == event
