"""Streams of typed events: nothing may stand among them but comments, and the last one tells that it is the last."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import TypedChunks, TypedFramer
from rewarm.messages import Progress
from rewarm.states import ReplicaState
from tests.gateway.responses_world import RECORDED, recorded


def fed(*pieces: bytes) -> tuple[bytes, TypedFramer]:
    framer = TypedFramer()
    out = b"".join([framer.feed(piece) for piece in pieces])
    return out + framer.finish(), framer


def test_a_whole_stream_is_done_without_done() -> None:
    out, framer = fed(RECORDED)
    assert (out, framer.done, framer.between) == (RECORDED, True, True)


@given(st.lists(st.integers(0, len(RECORDED)), max_size=6).map(sorted))
def test_however_the_bytes_are_cut_the_end_is_seen(cuts: list[int]) -> None:
    edges = [0, *cuts, len(RECORDED)]
    out, framer = fed(*(RECORDED[a:b] for a, b in pairwise(edges)))
    assert (out, framer.done) == (RECORDED, True)


@pytest.mark.parametrize("kind", ["response.completed", "response.incomplete", "response.failed", "error"])
def test_each_of_the_last_events_ends_a_stream(kind: str) -> None:
    for end in (b"\n\n", b"\n", b""):
        event = f'event: {kind}\ndata: {{"type": "{kind}"}}'.encode()
        out, framer = fed(b"".join(recorded()[:3]), event + end)
        assert framer.done and out.endswith(event + b"\n\n")


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"event: response.output_item.done\ndata: {}\n\n",
        b'data: {"text": "event: response.completed"}\n\n',
        b"data: [DONE]\n\n",
        b"event: response.compl",
    ],
)
def test_anything_else_does_not(tail: bytes) -> None:
    _, framer = fed(b"".join(recorded()[:3]), tail)
    assert not framer.done


def test_there_are_no_chunks_only_comments_and_an_error_of_the_api_s_own_kind() -> None:
    chunks = TypedChunks(chat=False, request_id="req-1", model="m", created_s=7)
    assert chunks.no_op({"state": "running"}) == b""
    told = chunks.progress(Progress(model="m", phase=ReplicaState.RESTORING, fraction=0.5), "waiting")
    assert told == b": loading 50.0% phase=restoring\n"
    end = chunks.error_end({"message": "it died", "type": "server_error", "param": None, "code": "worker_died"})
    name, data = end.decode().rstrip("\n").split("\n")
    payload = json.loads(data.removeprefix("data: "))
    assert (name, payload["type"], payload["code"]) == ("event: error", "error", "worker_died")
    assert next(iter(payload)) == "error" and payload["error"]["message"] == "it died"
