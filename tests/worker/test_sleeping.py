"""The memory of what sleeps: counted as measured, kept for its wake, and given to others when they need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from worker.devices.device import RAM, Device
from worker.devices.ledgers import Demand, Ledgers
from worker.gate.control import GateControl, GateUnreachable
from worker.launch import room_for
from worker.memory import Holding, Machine
from worker.report import GateState, Rest
from worker.sleeping import Sleeping
from worker.surroundings import Surroundings

pytestmark = pytest.mark.asyncio

NEED = {RAM: 600}


class Control:
    def __init__(self) -> None:
        self.rest = Rest.ASLEEP
        self.may_wake: bool | None = None
        self.woken = 0
        self.reachable = True
        self.slow = asyncio.Event()  # its answers wait for it
        self.slow.set()
        self.asked = asyncio.Event()

    async def sleep(self, level: int, if_last_activity_s: float | None, *, may_wake: bool) -> GateState:
        self.may_wake = may_wake
        return GateState(slots=1, rest=self.rest)

    async def let_wake(self, may_wake: bool) -> GateState:
        if not self.reachable:
            raise GateUnreachable("gone")
        self.may_wake = may_wake
        self.asked.set()
        await self.slow.wait()
        return GateState(slots=1, rest=self.rest)

    async def wake(self) -> GateState:
        self.woken += 1
        return GateState(slots=1, rest=Rest.WAKING)


class Lock:
    """Of the machine."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()
        self.waiting = asyncio.Event()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Mapping[str, Sequence[Holding]]]:
        self.waiting.set()
        await self.free.wait()
        yield {}


class Watch:
    async def read(self) -> Mapping[str, Machine]:
        return {RAM: Machine(2000, 2000)}


class NoPool:
    async def give_back(self) -> bool:
        return False


class Around:
    def __init__(self) -> None:
        self.ledgers = Ledgers({RAM: Device(RAM, 1000, 2000)})
        self.ledgers.hold("a", {RAM: Holding(600, 580)})
        self.watch = Watch()
        self.lenders: dict[str, Any] = {}
        self.room = asyncio.Event()
        self.device = Lock()
        self.starter = NoPool()


class Rig:
    def __init__(self) -> None:
        self.control = Control()
        self.around = Around()
        self.surroundings = cast(Surroundings, self.around)
        self.ledger = self.around.ledgers.ram
        self.sleeping = Sleeping("a", self.surroundings, cast(GateControl, self.control))

    def asleep(self, used: int = 100) -> None:
        self.sleeping.settle(NEED, {RAM: used}, asleep=True)

    def may_wake(self) -> bool | None:
        """As its gate was last told."""
        return self.control.may_wake

    async def room(self, need: int) -> bool:
        return (await room_for(self.surroundings, Demand(need), {})).verdict.fits


async def test_asleep_it_counts_as_measured_and_its_wake_as_kept() -> None:
    rig = Rig()
    rig.asleep()
    assert rig.ledger.holdings["a"] == Holding(100, 100, 500)
    assert rig.ledger.promised_bytes == 100  # what placement sees
    assert await rig.room(300)
    assert rig.may_wake() is None, "there was room beside it"
    rig.sleeping.settle(NEED, {RAM: 580}, asleep=False)
    assert rig.ledger.holdings["a"] == Holding(600, 580)


async def test_what_makes_room_for_another_model_keeps_none_for_its_wake() -> None:
    rig = Rig()
    await rig.sleeping.fall(1, None, may_wake=False)
    assert rig.may_wake() is False
    rig.asleep()
    assert rig.ledger.holdings["a"] == Holding(100, 100, 0)


async def test_a_load_that_needs_the_room_gets_it_and_the_gate_hears_of_it_first() -> None:
    rig = Rig()
    rig.asleep()
    assert await rig.room(800)
    assert rig.may_wake() is False
    assert rig.ledger.holdings["a"].lent_bytes == 0
    rig.asleep()  # measured again: still not kept
    assert rig.ledger.holdings["a"].lent_bytes == 0


@pytest.mark.parametrize("how", ["a request was first", "the gate does not answer"])
async def test_room_is_not_taken_from_one_that_may_have_woken(how: str) -> None:
    rig = Rig()
    rig.asleep()
    if how == "a request was first":
        rig.control.rest = Rest.WAKING
    else:
        rig.control.reachable = False
    assert not await rig.room(800)
    assert rig.ledger.holdings["a"].lent_bytes == 500


async def test_once_taken_it_wakes_only_when_there_is_room_again() -> None:
    rig = Rig()
    rig.asleep()
    assert await rig.room(800)
    rig.ledger.holdings["b"] = Holding(800)
    assert await rig.sleeping.wake(NEED, "") is None
    waited = rig.sleeping.waits_for_room
    await rig.sleeping.renew(NEED)
    assert rig.may_wake() is False
    del rig.ledger.holdings["b"]
    await rig.sleeping.renew(NEED)
    assert rig.may_wake() is True
    assert await rig.sleeping.wake(NEED, "") is not None
    assert (waited, rig.sleeping.waits_for_room) == (True, False)
    assert rig.control.woken == 1


async def test_one_sleeper_may_take_the_room_of_another() -> None:
    rig = Rig()
    rig.asleep()
    other = Control()
    sleeping = Sleeping("b", rig.surroundings, cast(GateControl, other))
    rig.ledger.holdings["b"] = Holding(600, 600)
    sleeping.settle(NEED, {RAM: 100}, asleep=True)
    assert await rig.room(450)  # takes the right of `a`, which is enough
    rig.ledger.holdings["c"] = Holding(200)
    assert await rig.sleeping.wake(NEED, "") is not None
    assert other.may_wake is False


@pytest.mark.parametrize("how", ["renew", "wake"])
async def test_one_that_ends_while_it_waits_for_the_machines_lock_holds_nothing(how: str) -> None:
    """Else nobody would ever drop it: its room would be missing until the agent starts anew."""
    rig = Rig()
    rig.asleep()
    assert await rig.room(800)
    rig.around.device.free.clear()
    rig.around.device.waiting.clear()
    todo = rig.sleeping.renew(NEED) if how == "renew" else rig.sleeping.wake(NEED, "")
    task = asyncio.ensure_future(todo)
    await rig.around.device.waiting.wait()
    rig.around.ledgers.drop("a")
    rig.around.lenders.pop("a", None)
    rig.around.device.free.set()
    await task
    assert "a" not in rig.ledger.holdings
    assert not rig.around.lenders
    assert rig.control.woken == 0


async def test_room_is_not_taken_from_one_that_is_about_to_be_woken() -> None:
    """Its want took the room for granted while the gate was answering that it slept."""
    rig = Rig()
    rig.asleep()
    rig.control.slow.clear()
    taking = asyncio.ensure_future(rig.room(800))
    await rig.control.asked.wait()
    assert await rig.sleeping.wake(NEED, "") is not None
    rig.control.slow.set()
    assert not await taking
    assert rig.ledger.holdings["a"].lent_bytes == 500
