"""What ``rewarm ps`` says of a model that does not run: why it waits, why it failed, and where it is passed over."""

from __future__ import annotations

from typing import Any

from rewarm.cli.table import rows

NOW = 1_000_000


def shown(**model: Any) -> str:
    status = {"now_ms": NOW, "models": {"chat": {"state": "cold", **model}}, "workers": []}
    (row,) = rows(status)
    return row.detail


def test_why_it_waits() -> None:
    why = "waits for room: coder sleeps first (least recently used, idle 12 s)"
    assert shown(waiting=3, waits_for=why) == why
    replica = {"replica": "chat-1", "model": "chat", "state": "asleep", "no_sleep": ""}
    status = {
        "now_ms": NOW,
        "models": {"chat": {"state": "asleep", "waiting": 1, "waits_for": why}},
        "workers": [{"worker": "w1", "replicas": [replica]}],
    }
    assert [row.detail for row in rows(status)] == [why]


def test_an_adapter_says_whose_it_is_and_why_it_alone_failed() -> None:
    """Who waits is counted once, with its base."""
    tuned = {"state": "ready", "adapter_of": "chat", "waiting": 3}
    status = {"now_ms": NOW, "models": {"chat": {"state": "ready", "waiting": 3}, "tuned": tuned}, "workers": []}
    chat, row = rows(status)
    assert (chat.waiting, row.waiting, row.state, row.detail) == (3, 0, "ready", "adapter of chat")
    failure = {"reason": "adapter_load_failed", "message": "not JSON"}
    assert shown(adapter_of="chat", failure=failure) == "adapter_load_failed: not JSON"


def test_the_life_of_a_failed_load() -> None:
    failure = {"reason": "engine_exited", "message": "it exited with status 7"}
    place = {"worker": "w1", "failures": 2, "open_until_ms": NOW + 30_000}
    assert shown(failure=failure, failed_until_ms=NOW + 12_000, places=[place]) == (
        "engine_exited: it exited with status 7; tried again in 12.0 s; w1: 2 failed loads, passed over for 30.0 s"
    )
    place["open_until_ms"] = NOW - 1
    assert shown(places=[place]) == "w1: 2 failed loads, one more may be tried"
