"""Placement on a machine with several devices: a model lies on one of them, or on as many GPUs as it asks for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.needs import reach, ways
from controller.round import Round
from controller.state import replicas_of
from rewarm.config import PlacementRules
from rewarm.messages import CatalogueEntry, DeviceReport
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import GIB, World, entry, gpu

RULES = PlacementRules(min_residency_ms=0, max_wait_ms=10_000, concurrent_loads=3)
DAY_S = 86_400.0


def model(name: str, gib: int | None = None, *, engine: str = "vllm", **spec: Any) -> CatalogueEntry:
    made = entry(name, memory=gib * GIB if gib else None, idle_after_s=DAY_S)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, engine=engine, **spec))


def machine(*gpus: DeviceReport, models: list[CatalogueEntry], memory: int = 64 * GIB) -> World:
    world = World.of(*models, workers=0, rules=RULES)
    world.add_worker("w", *gpus, memory=memory)
    return world


def holds(world: World, name: str, idle_s: float = 60, **gib: int) -> str:
    """A replica of the model is ready, idle, and lies where ``gib`` says."""
    world.ask(name)
    world.step()
    (replica,) = world.wanted(name)
    at_ms = int(world.now_ms - idle_s * 1000)
    needs = {device.replace("gpu", "GPU-"): size * GIB for device, size in gib.items()}
    sizes = {"needs": needs, "need_bytes": sum(needs.values())}
    world.ready(replica, ready_at_ms=at_ms, last_activity_ms=at_ms, **sizes)
    world.answer_all(name)
    world.demand.pop(name)
    for device, size in needs.items():
        free = next(one.free_bytes for one in world.workers["w"].devices if one.id == device)
        world.set_free("w", free - size, device)
    world.step()
    return replica


def of(world: World, asked: CatalogueEntry) -> list[dict[str, int]]:
    view = world.view()
    round_ = Round(view=view, memory=world.memory, now_ms=world.now_ms, replicas=replicas_of(view))
    return [dict(way) for way in ways(round_, asked, world.beats()["w"])]


# --- where it could lie ----------------------------------------------------------------------------------------------

TWO = (gpu(0, 24 * GIB), gpu(1, 24 * GIB))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (model("m", 16), [{"GPU-0": 16}, {"GPU-1": 16}]),
        (model("m", 40), []),
        (model("m", 40, gpus=2), [{"GPU-0": 20, "GPU-1": 20}]),
        (model("m", 60, gpus=2), []),
        (model("m", 16, gpus=3), []),
        (model("m", 16, devices=("1",)), [{"GPU-1": 16}]),
        (model("m", 16, devices=("GPU-0",)), [{"GPU-0": 16}]),
        (model("m", 16, devices=("7",)), []),
        (model("m", 16, devices=("ram",)), [{"ram": 16}]),
        (model("m", 40, engine="torch"), [{"ram": 40}]),
        (model("m", 80, engine="torch"), []),
        (model("m", 16, engine="command"), [{"GPU-0": 16}, {"GPU-1": 16}]),
        (model("m"), [{}]),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_the_ways_in_which_a_model_could_lie_there(asked: CatalogueEntry, expected: list[dict[str, int]]) -> None:
    """An empty one, as long as nobody knows what it takes; none, where no budget is large enough."""
    world = machine(*TWO, models=[asked])
    assert of(world, asked) == [{device: gib * GIB for device, gib in way.items()} for way in expected]


def test_a_lost_card_is_none_and_without_cards_everything_is_in_ram() -> None:
    asked = model("m", 16)
    lost = gpu(1, 0, state="lost")
    assert of(machine(TWO[0], lost, models=[asked]), asked) == [{"GPU-0": 16 * GIB}]
    assert of(machine(models=[asked]), asked) == [{"ram": 16 * GIB}]


def test_what_an_agent_has_counted_is_known_from_then_on() -> None:
    """Of a vLLM that is built for the CPU nobody else knows; nor what it takes in RAM beside its GPU."""
    for counted in ({"ram": 5 * GIB}, {"GPU-1": 5 * GIB, "ram": 2 * GIB}):
        asked = model("m")
        world = machine(*TWO, models=[asked])
        world.ask("m")
        world.step()
        world.ready(world.wanted("m")[0], need_bytes=5 * GIB, needs=counted)
        world.step()
        on_gpu = "GPU-1" in counted
        expected = [{"ram": 2 * GIB, card: 5 * GIB} for card in ("GPU-0", "GPU-1")] if on_gpu else [counted]
        assert of(world, asked) == expected


def test_a_roomier_worker_is_one_with_a_larger_device() -> None:
    asked = model("m", 16)
    world = World.of(asked, workers=0, rules=RULES)
    world.add_worker("many", gpu(0, 12 * GIB), gpu(1, 12 * GIB), gpu(2, 12 * GIB))
    world.add_worker("one", gpu(0, 24 * GIB))
    view = world.view()
    round_ = Round(view=view, memory=world.memory, now_ms=world.now_ms, replicas=replicas_of(view))
    assert [reach(round_, asked, world.beats()[name]) for name in ("many", "one")] == [12 * GIB, 24 * GIB]


# --- who is placed, and who goes -------------------------------------------------------------------------------------


def test_two_cards_with_room_for_half_of_it_each_have_no_room() -> None:
    """10 GiB are free on each, and by others' use: nothing of ours could leave."""
    world = machine(gpu(0, 24 * GIB, 10 * GIB), gpu(1, 24 * GIB, 10 * GIB), models=[model("m", 16)])
    world.ask("m")
    world.pass_s(1)
    assert world.wanted("m") == []
    assert "needs 16.0 GiB, 10.0 GiB of 24.0 GiB is free on GPU 0 of w" in world.explanations["m"].text


def test_who_goes_lies_on_one_card() -> None:
    """x and y together hold what is missing, and are used least, but lie on two cards: so z goes, alone."""
    models = [model("m", 16), model("x", 4), model("y", 4), model("z", 8), model("other", 10)]
    world = machine(*TWO, models=models)
    holds(world, "x", idle_s=900, gpu0=4)
    holds(world, "other", idle_s=30, gpu0=10)
    holds(world, "y", idle_s=800, gpu1=4)
    z = holds(world, "z", idle_s=60, gpu1=8)
    for index in (0, 1):  # others use some of each
        world.set_free("w", 9 * GIB, f"GPU-{index}")
    world.ask("m")
    world.step()
    assert [replica for name in ("x", "y", "z", "other") for replica in world.stopping(name)] == [z]
    assert world.explanations["m"].text.startswith("waits for room: z stops first")
    world.set_free("w", 17 * GIB, "GPU-1")
    world.report(z, ReplicaState.STOPPED, needs={}, need_bytes=0)
    world.pass_s(1)
    assert len(world.wanted("m")) == 1, "it is free, and measured to be"


def test_a_model_on_two_cards_needs_room_on_both() -> None:
    models = [model("wide", 32, gpus=2), model("a", 12), model("b", 12)]
    world = machine(*TWO, models=models)
    a, b = holds(world, "a", gpu0=12), holds(world, "b", gpu1=12)
    world.ask("wide")
    world.step()
    assert world.stopping("a") + world.stopping("b") == [a, b], "one of them alone would not do"


def test_a_model_in_ram_is_placed_by_the_room_in_ram() -> None:
    """Whatever the cards hold; and what lies on them does not leave for it."""
    models = [model("card", 22), model("small", 4, engine="torch"), model("large", 12, engine="torch")]
    world = machine(gpu(0, 24 * GIB), models=models, memory=14 * GIB)
    card = holds(world, "card", idle_s=900, gpu0=22)
    small = holds(world, "small", ram=4)
    assert small, "the card is full, and it started all the same"
    world.ask("large")
    world.step()
    assert world.stopping("small") == [small]
    assert world.wanted("card") == [card]


def test_two_starts_of_one_look_take_a_card_each() -> None:
    """What the first one is given counts on its card only."""
    world = machine(*TWO, models=[model("a", 16), model("b", 16), model("c", 16)])
    for name in "abc":
        world.ask(name)
    world.step()
    started = [name for name in "abc" if world.wanted(name)]
    assert len(started) == 2
    world.pass_s(1)
    assert [name for name in "abc" if world.wanted(name)] == started, "they are wanted, and in no ledger yet"


def test_what_no_card_can_hold_unloads_nobody_and_its_agent_says_why() -> None:
    world = machine(gpu(0, 12 * GIB), gpu(1, 12 * GIB), models=[model("m", 16), model("a", 8)])
    a = holds(world, "a", idle_s=900, gpu0=8)
    world.ask("m")
    world.step()
    (refused,) = world.wanted("m")
    world.fails(refused, FailureReason.NEVER_FITS, "needs 16.0 GiB; the largest budget is 12.0 GiB")
    world.pass_s(1)
    assert world.failed[0].failure is not None
    assert world.failed[0].failure.reason is FailureReason.NEVER_FITS
    assert world.wanted("a") == [a]


def test_a_sleeper_wakes_where_it_lies() -> None:
    """Room on the other card is none for it; what lies there stays."""
    models = [model("sleeper", 16), model("beside", 12), model("elsewhere", 12)]
    world = machine(*TWO, models=models)
    sleeper = holds(world, "sleeper", idle_s=5, gpu0=16)
    world.report(sleeper, ReplicaState.READY, can_sleep=True, memory_bytes=16 * GIB)
    world.set_free("w", 8 * GIB, "GPU-0")
    world.ask("beside")
    world.set_free("w", 10 * GIB, "GPU-1")
    world.pass_s(2)
    assert world.wanted("sleeper", ReplicaState.ASLEEP) == [sleeper], "it makes room"
    world.report(sleeper, ReplicaState.ASLEEP, memory_bytes=2 * GIB)
    world.set_free("w", 22 * GIB, "GPU-0")
    world.pass_s(1)
    (beside,) = world.wanted("beside")
    world.ready(beside, needs={"GPU-0": 12 * GIB}, need_bytes=12 * GIB, memory_bytes=12 * GIB)
    world.answer_all("beside")
    world.set_free("w", 10 * GIB, "GPU-0")
    world.set_free("w", 24 * GIB, "GPU-1")
    elsewhere = holds(world, "elsewhere", idle_s=900, gpu1=12)
    world.pass_s(5)
    world.ask("sleeper")
    world.step()
    world.report(sleeper, ReplicaState.ASLEEP, waits_for_room=True)  # its agent finds none
    world.step()
    assert world.stopping("beside") == [beside]
    assert world.wanted("elsewhere") == [elsewhere]


def test_what_lies_on_another_device_is_no_reason_why_somebody_waits() -> None:
    pinned = [model("card", 22), model("small", 4, engine="torch")]
    pinned = [msgspec.structs.replace(one, policy=msgspec.structs.replace(one.policy, pinned=True)) for one in pinned]
    world = machine(gpu(0, 24 * GIB), models=[*pinned, model("large", 12, engine="torch")], memory=14 * GIB)
    holds(world, "card", gpu0=22)
    holds(world, "small", ram=4)
    world.ask("large")
    world.step()
    (failed,) = world.failed
    assert "small is pinned" in failed.message
    assert "card" not in failed.message
