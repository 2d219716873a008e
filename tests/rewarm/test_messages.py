"""What crosses Redis and pipes is typed and versioned: foreign bytes are refused, never guessed at."""

from __future__ import annotations

import msgspec
import pytest

from rewarm.messages import (
    Grant,
    Progress,
    TicketFailed,
    UnknownSchema,
    decode,
    decode_gateway_event,
    encode,
    to_json,
)
from rewarm.states import ReplicaState

PROGRESS = Progress(model="m", phase=ReplicaState.RESTORING, fraction=0.5, bytes_done=1, bytes_total=2)


def test_a_message_survives_the_trip() -> None:
    assert decode(encode(PROGRESS), Progress) == PROGRESS


def test_the_two_events_of_a_gateway_are_told_apart() -> None:
    grant = Grant(ticket="t", model="m", replica="r", endpoint="unix:/x", grant="g", expires_ms=1)
    failed = TicketFailed(ticket="t", code="model_load_failed", message="why")
    assert decode_gateway_event(encode(grant)) == grant
    assert decode_gateway_event(encode(failed)) == failed


def test_another_schema_version_is_refused() -> None:
    with pytest.raises(UnknownSchema, match="schema version 2"):
        decode(msgspec.msgpack.encode({"model": "m", "v": 2}), Progress)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", b"hello", msgspec.msgpack.encode({"model": 3})])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UnknownSchema, match="Progress"):
        decode(data, Progress)


def test_json_shows_state_names_and_no_version() -> None:
    shown = to_json(PROGRESS)
    assert shown["phase"] == "restoring"
    assert "v" not in shown
