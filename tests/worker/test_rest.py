"""A gate whose engine sleeps: who wakes it, who may not, and that nothing ever meets it half asleep."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from worker.gate import Gate
from worker.gate.gate import BUSY_HEADER, Answer, Pass, Slot
from worker.report import Rest

pytestmark = pytest.mark.asyncio

TOKEN = {b"x-rewarm-control": b"token"}


class Engine:
    """Counts what a real one would break on."""

    def __init__(self, *, takes_s: float = 0.0) -> None:
        self.awake = True
        self.busy = 0
        self.slept = 0
        self.refuses: set[str] = set()
        self.takes_s = takes_s

    async def sleep(self, level: int) -> None:
        assert self.awake
        assert self.busy == 0
        await asyncio.sleep(self.takes_s)
        if "sleep" in self.refuses:
            raise RuntimeError("not today")
        self.awake = False
        self.slept += 1

    async def wake(self) -> None:
        await asyncio.sleep(self.takes_s)
        if "wake" in self.refuses:
            raise RuntimeError("not now")
        self.awake = True


def gate_of(engine: Engine | None, slots: int = 4) -> tuple[Gate, asyncio.Future[str] | None]:
    gate = Gate(slots, token="token")
    lost = None if engine is None else gate.may_sleep(engine)
    gate.open()
    return gate, lost


def enter(gate: Gate, headers: Mapping[bytes, bytes] | None = None) -> Slot | Answer:
    entered = gate.enter("POST", "/v1/completions", headers or {}, tcp=False)
    assert isinstance(entered, Slot | Answer)
    return entered


def control(gate: Gate, action: str, **fields: Any) -> dict[str, Any]:
    answer = gate.control("POST", f"/.rewarm/{action}", TOKEN, json.dumps(fields).encode(), tcp=False)
    state: dict[str, Any] = json.loads(answer.body)
    return state


async def settled(gate: Gate, rest: Rest) -> None:
    for _ in range(100):  # of the loop's turns: nothing here takes any time
        if gate.state.rest is rest:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{gate.state.rest}, not {rest}")


async def test_a_request_wakes_it_where_the_agent_keeps_the_memory_for_it() -> None:
    engine = Engine()
    gate, _ = gate_of(engine)
    assert control(gate, "sleep", level=1, may_wake=True)["rest"] == "falling"
    await settled(gate, Rest.ASLEEP)
    slot = enter(gate)
    assert isinstance(slot, Slot)
    assert gate.state.rest is Rest.WAKING
    await gate.awake()
    assert engine.awake
    slot.free()
    assert (gate.state.wakes, gate.state.running) == (1, 0)


async def test_else_it_is_refused_until_the_agent_wakes_it() -> None:
    gate, _ = gate_of(Engine())
    control(gate, "sleep", level=1, may_wake=True)
    await settled(gate, Rest.ASLEEP)
    control(gate, "state", may_wake=False)
    refused = enter(gate)
    assert isinstance(refused, Answer)
    assert (BUSY_HEADER, b"asleep") in refused.headers
    control(gate, "wake")
    assert isinstance(enter(gate), Slot)  # it waits there for the rest of the wake


async def test_the_right_to_wake_comes_too_late_back_once_a_request_is_there() -> None:
    """While it still falls asleep: the answer says that it will be awake."""
    gate, _ = gate_of(Engine())
    control(gate, "sleep", level=1, may_wake=True)
    assert isinstance(enter(gate), Slot)
    assert control(gate, "state", may_wake=False)["rest"] == "waking"
    await gate.awake()


@pytest.mark.parametrize("how", ["running", "reserved", "used meanwhile", "draining"])
async def test_it_does_not_fall_asleep_when_it_is_needed(how: str) -> None:
    gate, _ = gate_of(Engine())
    seen = gate.state.last_activity_s
    if how == "reserved":
        control(gate, "reserve", slots=1)
    elif how == "draining":
        control(gate, "state", draining=True)
    else:
        slot = enter(gate)
        assert isinstance(slot, Slot)
        if how == "used meanwhile":
            slot.free()
    assert control(gate, "sleep", level=1, may_wake=True, if_last_activity_s=seen)["rest"] == "awake"


async def test_it_stays_awake_while_its_host_asks_it_something() -> None:
    """The check after a wake is no request of anybody's, and must not be cut off by sleep."""
    gate, _ = gate_of(Engine())
    own = gate.enter("POST", "/v1/completions", TOKEN, tcp=False)
    assert isinstance(own, Pass)
    assert control(gate, "sleep", level=1, may_wake=True)["rest"] == "awake"
    own.free()
    own.free()  # once however often it is called
    assert control(gate, "sleep", level=1, may_wake=True)["rest"] == "falling"


async def test_quiet_means_that_nothing_runs_and_nothing_is_reserved() -> None:
    gate, _ = gate_of(None)
    assert gate.quiet.is_set()
    slot = enter(gate)
    assert isinstance(slot, Slot)
    assert not gate.quiet.is_set()
    slot.free()
    assert gate.quiet.is_set()
    control(gate, "reserve", slots=1)
    assert not gate.quiet.is_set()


async def test_an_engine_without_sleep_says_so_and_stays_awake() -> None:
    gate, _ = gate_of(None)
    assert control(gate, "sleep", level=1)["rest"] == "awake"
    gate, _ = gate_of(Engine())
    gate.may_not_sleep("no snapshot")
    state = control(gate, "sleep", level=1)
    assert (state["rest"], state["can_sleep"], state["no_sleep"]) == ("awake", False, "no snapshot")


async def test_one_that_fails_to_fall_asleep_is_woken_and_not_asked_again() -> None:
    engine = Engine()
    engine.refuses = {"sleep"}
    gate, lost = gate_of(engine)
    control(gate, "sleep", level=1)
    await gate.awake()
    assert "not today" in gate.state.no_sleep
    assert not gate.state.can_sleep
    assert lost is not None
    assert not lost.done()


async def test_one_that_fails_to_wake_is_lost() -> None:
    engine = Engine()
    engine.refuses = {"wake"}
    gate, lost = gate_of(engine)
    control(gate, "sleep", level=1, may_wake=True)
    await settled(gate, Rest.ASLEEP)
    enter(gate)
    assert lost is not None
    assert "not now" in await asyncio.wait_for(lost, 2)


async def test_keep_alive_is_told_to_the_agent() -> None:
    gate, _ = gate_of(Engine())
    enter(gate, {b"x-rewarm-keep-alive": b"-1"})
    assert gate.state.keep_alive_s == -1
    enter(gate)
    assert gate.state.keep_alive_s == -1
    enter(gate, {b"x-rewarm-keep-alive": b"600"})
    assert gate.state.keep_alive_s == 600


@pytest.mark.parametrize("seed", range(200))
async def test_no_race_of_requests_sleep_wake_and_the_agent_meets_an_engine_half_asleep(seed: int) -> None:
    chance = random.Random(seed)
    engine = Engine(takes_s=0.0005)
    gate, lost = gate_of(engine, slots=3)
    served = refused = 0

    async def request() -> None:
        nonlocal served, refused
        await asyncio.sleep(chance.uniform(0, 0.004))
        entered = enter(gate)
        if isinstance(entered, Answer):
            refused += 1
            return
        if not gate.is_awake:
            await gate.awake()
        assert engine.awake
        engine.busy += 1
        await asyncio.sleep(chance.uniform(0, 0.001))
        assert engine.awake
        engine.busy -= 1
        entered.free()
        served += 1

    async def agent() -> None:
        for _ in range(6):
            await asyncio.sleep(chance.uniform(0, 0.001))
            match chance.randrange(4):
                case 0 | 1:
                    control(gate, "sleep", level=chance.choice((1, 2)), may_wake=chance.random() < 0.7)
                case 2:
                    control(gate, "wake")
                case 3:
                    control(gate, "state", may_wake=chance.random() < 0.5)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(request())
        group.create_task(agent())
    assert served + refused == 8
    control(gate, "state", may_wake=True)
    last = enter(gate)
    assert isinstance(last, Slot)
    await asyncio.wait_for(gate.awake(), 2)
    assert engine.awake
    assert lost is not None
    assert not lost.done()
