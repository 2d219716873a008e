"""A real engine that sleeps: its memory goes, its answers stay, and no request meets it half asleep."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psutil
import pytest

from rewarm.messages import ReplicaSpec
from snapshots import Flavour, Reference, SnapshotNotFound, Store
from tests.folders import passing_folder
from tests.worker.vllm.hosting import TOKEN, Host, eventually, hosted, question

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

CONTROL = {"X-Rewarm-Control": TOKEN}
MIB = 2**20


@pytest.fixture(scope="module")
def store(spec: ReplicaSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """With a packed snapshot, made by a first load, which cannot sleep itself."""
    with passing_folder(tmp_path_factory, "sleep") as folder:
        store = Store(folder / "store", floor_bytes=0)
        with hosted(folder / "host", spec, snapshots=str(store.root)) as host:
            host.wait_ready()
            state = host.gate()
            assert not state["can_sleep"]
            assert "not mapped from a packed snapshot" in state["no_sleep"]
            assert asked(host, "sleep", level=1)["rest"] == "awake"
            eventually(lambda: has_packed(store), 60, "the snapshot is published")
        yield store


@pytest.fixture(scope="module")
def host(store: Store, spec: ReplicaSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with hosted(tmp_path_factory.mktemp("sleeper"), spec, snapshots=str(store.root)) as host:
        host.wait_ready()
        assert host.gate()["can_sleep"], host.gate()["no_sleep"]
        yield host


def has_packed(store: Store) -> bool:
    try:
        return store.find(Reference("smollm2", flavour=Flavour.PACKED)).manifest is not None
    except SnapshotNotFound:
        return False


def asked(host: Host, action: str, **fields: Any) -> dict[str, Any]:
    response, connection = host.request(f"/.rewarm/{action}", fields, headers=CONTROL)
    with closing(connection):
        answer: dict[str, Any] = json.loads(response.read())
        return answer


def fall_asleep(host: Host, level: int = 1, *, may_wake: bool = True) -> float:
    began = time.monotonic()
    assert asked(host, "sleep", level=level, may_wake=may_wake)["rest"] in ("falling", "asleep")
    eventually(lambda: host.gate()["rest"] == "asleep", 10, "it sleeps")
    return time.monotonic() - began


def said(host: Host) -> str:
    status, answer = host.json("/v1/chat/completions", question())
    assert status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


def pss(host: Host) -> int:
    return sum(psutil.Process(p.pid).memory_full_info().pss for p in host.members())


@pytest.mark.parametrize("level", [1, 2])
def test_asleep_it_holds_little_and_a_request_wakes_it_to_the_same_answer(host: Host, level: int) -> None:
    before = said(host)
    awake = pss(host)
    fall_asleep(host, level)
    asleep = pss(host)
    assert awake - asleep > 300 * MIB, (awake, asleep)  # the weights in float32 take 513 MiB
    assert said(host) == before
    state = host.gate()
    assert (state["rest"], state["running"]) == ("awake", 0)
    assert state["wake_ended_s"] > state["wake_began_s"] > 0


def test_without_the_agents_leave_a_request_is_refused_and_the_agent_wakes_it(host: Host) -> None:
    before = said(host)
    fall_asleep(host, may_wake=False)
    status, answer = host.json("/v1/chat/completions", question())
    assert status == 503, answer
    assert host.gate()["rest"] == "asleep"
    asked(host, "wake")
    assert said(host) == before


def test_it_does_not_fall_asleep_over_a_request_nor_when_it_was_used_meanwhile(host: Host) -> None:
    seen = host.gate()["last_activity_s"]
    response, connection = host.request("/v1/chat/completions", question("Tell a story.", stream=True, max_tokens=200))
    with closing(connection):
        response.readline()
        assert asked(host, "sleep", level=1)["rest"] == "awake"
        response.read()
    eventually(lambda: host.gate()["running"] == 0, 5, "it is over")
    assert asked(host, "sleep", level=1, if_last_activity_s=seen)["rest"] == "awake"


def test_two_hundred_races_of_requests_and_sleep(host: Host) -> None:
    """Each round lets a sleep and two requests go at random moments around each other; all are answered, and right."""
    expected = said(host)
    chance = random.Random(7)
    wrong: list[object] = []
    slept = 0

    def ask(after_s: float) -> None:
        time.sleep(after_s)
        status, answer = host.json("/v1/chat/completions", question(max_tokens=4))
        text = answer["choices"][0]["message"]["content"] if status == 200 else answer
        if status != 200 or not expected.startswith(str(text)):
            wrong.append(answer)

    for number in range(200):
        asking = [threading.Thread(target=ask, args=(chance.uniform(0, 0.06),)) for _ in range(2)]
        for thread in asking:
            thread.start()
        time.sleep(chance.uniform(0, 0.06))
        slept += asked(host, "sleep", level=2 if number % 50 == 0 else 1, may_wake=True)["rest"] != "awake"
        for thread in asking:
            thread.join()
    assert not wrong, wrong[:3]
    assert slept > 20, "most of the rounds missed each other"
    assert said(host) == expected
