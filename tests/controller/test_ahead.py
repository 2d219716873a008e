"""``min_asleep``: loaded ahead and left to sleep; in nobody's way, and never in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.actions import Action, Rest, Start, Stop
from controller.events import Configured, Operator
from controller.state import StopReason
from rewarm.config import PlacementRules
from rewarm.states import FailureReason, ReplicaState
from tests.controller.fleetview import GIB, World, entry, kinds
from tests.controller.simulator import Kind, Request, Simulation

READY, ASLEEP, STOPPED = ReplicaState.READY, ReplicaState.ASLEEP, ReplicaState.STOPPED


def loaded_ahead(world: World, model: str = "m") -> str:
    """Its replica, which nobody has asked for, and which sleeps."""
    (replica,) = world.wanted(model)
    world.ready(replica, can_sleep=True, need_bytes=4 * GIB, memory_bytes=4 * GIB)
    assert "Rest" in kinds(world.step())
    world.report(replica, ASLEEP, memory_bytes=GIB)
    world.step()
    return replica


def test_it_is_loaded_without_a_request_and_sleeps_as_soon_as_it_is_ready() -> None:
    world = World.of(entry(min_asleep=1))
    (replica,) = world.wanted()
    want = world.want_of(replica)
    assert (want.reason, want.waited_for, want.ahead) == ("min_asleep is 1", False, True)
    loaded_ahead(world)
    assert world.want_of(replica).state is ASLEEP
    assert world.pass_s(24 * 3600) == [], "idle_after does not stop it"


def test_a_request_wakes_it_and_it_sleeps_again_by_its_clock() -> None:
    world = World.of(entry(min_asleep=1, sleep_after_s=60, idle_after_s=300))
    replica = loaded_ahead(world)
    world.pass_s(3600)
    world.ask()
    assert kinds(world.step()) == ["Keep"]
    world.ready(replica, served=1)
    world.answer_all()
    assert world.pass_s(59) == []
    assert kinds(world.pass_s(2)) == ["Rest"]
    world.asleep(replica)
    assert world.pass_s(3600) == []


def test_it_sleeps_where_it_would_otherwise_stop() -> None:
    world = World.of(entry(min_asleep=1, sleep_after_s=500, idle_after_s=300))
    (replica,) = world.wanted()
    world.ready(replica, can_sleep=True, served=1)
    assert world.pass_s(299) == []
    assert kinds(world.pass_s(2)) == ["Rest"]


def test_only_what_is_above_it_stops() -> None:
    world = World.of(entry(min_asleep=1, max_replicas=2), workers=2)
    loaded_ahead(world)
    world.ask(tickets=20)
    world.step()
    for replica in world.wanted():
        world.ready(replica, can_sleep=True, served=1)
    world.answer_all()
    assert sorted(kinds(world.pass_s(301))) == ["Rest", "Stop"]


def test_one_that_is_spare_sleeps_rather_than_to_be_loaded_anew() -> None:
    world = World.of(entry(min_asleep=2, max_replicas=2, sleep_after_s=3600, idle_after_s=300), workers=2)
    for replica in world.wanted():
        world.ready(replica, can_sleep=True, served=1, in_flight=1)
    world.step()
    world.now_ms += 301_000
    world.ready(world.wanted()[0], in_flight=0)
    assert kinds(world.step()) == ["Rest"]
    assert kinds(world.step()) == []


def test_what_is_asked_for_meanwhile_is_a_load_like_any_other() -> None:
    world = World.of(entry(min_asleep=1))
    (replica,) = world.wanted()
    world.report(replica, ReplicaState.RESTORING)
    world.ask()
    world.step()
    want = world.want_of(replica)
    assert (want.waited_for, want.ahead) == (True, False)


def test_those_that_min_replicas_keeps_awake_count() -> None:
    world = World.of(entry(min_asleep=1, min_replicas=1))
    (replica,) = world.wanted()
    world.ready(replica, can_sleep=True)
    assert world.pass_s(3600) == []


def test_a_new_specification_is_loaded_ahead_in_its_turn() -> None:
    world = World.of(entry(min_asleep=1))
    old = loaded_ahead(world)
    assert set(kinds(world.step(Configured({"m": entry(min_asleep=1, spec_hash="h2")})))) >= {"Stop", "Start"}
    assert world.want_of(old).state is STOPPED
    (new,) = world.wanted()
    assert (world.want_of(new).spec_hash, world.want_of(new).ahead) == ("h2", True)


def test_a_new_specification_during_its_load_has_nobody_leave() -> None:
    world = World.of(entry(min_asleep=1))
    (old,) = world.wanted()
    world.report(old, ReplicaState.RESTORING)
    world.step(Configured({"m": entry(min_asleep=1, spec_hash="h2")}))
    assert world.want_of(old).state is STOPPED
    (new,) = world.wanted()
    assert world.want_of(new).ahead


# --- it cannot sleep -------------------------------------------------------------------------------------------------


def test_the_first_load_stops_by_its_clock_and_the_next_one_sleeps() -> None:
    world = World.of(entry(min_asleep=1, idle_after_s=300, failure_memory_s=30))
    (first,) = world.wanted()
    world.ready(first, can_sleep=False)
    assert world.pass_s(299) == []
    assert kinds(world.pass_s(2)) == ["Stop"]
    world.report(first, STOPPED)
    assert kinds(world.pass_s(1)) == ["Forget"]
    assert world.explanations["m"].text == "min_asleep rests for 30.0 s: its last load came to no sleep"
    assert kinds(world.pass_s(30)) == ["Start"]
    loaded_ahead(world)
    assert world.memory.models["m"].vain == 0


def test_what_never_sleeps_is_loaded_ever_less_often() -> None:
    world = World.of(entry(min_asleep=1, idle_after_s=60, failure_memory_s=30))
    starts = []
    for _ in range(24 * 60):
        for replica in world.wanted():
            if not world.reports["w1"].get(replica):
                starts.append(world.now_ms)
                world.ready(replica, can_sleep=False)
        for replica in world.stopping():
            world.report(replica, STOPPED)
        world.pass_s(60)
    assert 5 <= len(starts) <= 14, "in a day"
    gaps = [later - before for before, later in pairwise(starts)]
    assert gaps == sorted(gaps)
    changed = world.step(Configured({"m": entry(min_asleep=1, spec_hash="h2")}))
    assert "Start" in kinds(changed) + kinds(world.step()), "another specification may sleep"


def test_an_engine_that_dies_idle_is_not_loaded_at_once() -> None:
    world = World.of(entry(min_asleep=1, failure_memory_s=30))
    replica = loaded_ahead(world)
    world.pass_s(600)
    world.fails(replica, FailureReason.ENGINE_EXITED)
    assert kinds(world.step()) == ["Forget"]
    assert world.pass_s(29) == []
    assert kinds(world.pass_s(2)) == ["Start"]


def test_an_operator_puts_it_to_sleep_and_a_drain_loads_it_anew() -> None:
    world = World.of(entry(min_asleep=1))
    (replica,) = world.wanted()
    world.ready(replica, can_sleep=True, served=1)
    assert kinds(world.step(Operator("sleep", "m"))) == ["Rest"]
    world.asleep(replica)
    assert set(kinds(world.step(Operator("drain", "m")))) == {"Stop", "Start"}


def test_a_sleep_that_stops_it_is_not_undone_at_once() -> None:
    world = World.of(entry(min_asleep=1, failure_memory_s=30))
    (replica,) = world.wanted()
    world.ready(replica, can_sleep=False)
    assert kinds(world.step(Operator("sleep", "m"))) == ["Stop"]
    world.report(replica, STOPPED)
    assert kinds(world.pass_s(1)) == ["Forget"]
    assert world.pass_s(28) == []
    assert kinds(world.pass_s(2)) == ["Start"]


# --- beside others ---------------------------------------------------------------------------------------------------


def test_nobody_leaves_for_it_and_ps_says_why_it_is_not_there() -> None:
    world = World.of(entry("other", memory=4 * GIB), memory=6 * GIB)
    other = world.wake("other")
    world.ready(other, can_sleep=True, need_bytes=4 * GIB)
    world.set_free("w1", 2 * GIB)
    world.step(Configured({"other": world.catalogue["other"], "m": entry(memory=4 * GIB, min_asleep=1)}))
    world.pass_s(50)
    assert world.wanted() == []
    assert world.want_of(other).state is READY
    assert world.explanations["m"].text == "min_asleep: needs 4.0 GiB, 2.0 GiB of 6.0 GiB is free on w1"


def test_a_worker_that_has_no_room_after_all_does_not_turn_anybody_out() -> None:
    """What it needs was not known here."""
    world = World.of(entry("other", memory=4 * GIB), memory=6 * GIB)
    other = world.wake("other")
    world.ready(other, can_sleep=True, need_bytes=4 * GIB)
    world.set_free("w1", 2 * GIB)
    world.step(Configured({"other": world.catalogue["other"], "m": entry(min_asleep=1, failure_memory_s=30)}))
    world.pass_s(1)
    (replica,) = world.wanted()
    world.report(replica, ReplicaState.COLD, waits_for_room=True, need_bytes=4 * GIB)
    world.pass_s(15)
    assert world.want_of(other).state is READY
    world.fails(replica, FailureReason.NO_ROOM)
    assert kinds(world.step()) == ["Forget"]
    assert world.statuses == {}, "no failure of the model"
    assert world.want_of(other).state is READY


def test_memory_that_nobody_of_the_fleet_holds_is_no_failure_of_the_model_either() -> None:
    world = World.of(entry(min_asleep=1, load_attempts=1, failure_memory_s=30))
    (replica,) = world.wanted()
    world.fails(replica, FailureReason.NO_ROOM)
    assert kinds(world.step()) == ["Forget"]
    assert world.statuses == {}, "a request would be refused for it"
    assert world.pass_s(29) == []
    assert kinds(world.pass_s(2)) == ["Start"]


def test_a_load_ahead_ends_at_once_for_whoever_waits() -> None:
    world = World.of(entry("m", memory=4 * GIB, min_asleep=1), entry("other", memory=4 * GIB), memory=6 * GIB)
    (replica,) = world.wanted("m")
    world.report(replica, ReplicaState.RESTORING, need_bytes=4 * GIB)
    world.set_free("w1", 2 * GIB)
    world.ask("other")
    world.step()
    want = world.want_of(replica)
    assert (want.state, want.reason) == (STOPPED, "evicted")


def test_it_stops_only_when_everybody_else_who_is_idle_has_gone() -> None:
    """A load of 8 GiB of 12: of one that sleeps (1 GiB), and of one that does not use its 4."""
    models = (entry("m", memory=4 * GIB, min_asleep=1), entry("idle", memory=4 * GIB), entry("big", memory=8 * GIB))
    world = World.of(*models, memory=12 * GIB)
    replica = loaded_ahead(world, "m")
    world.pass_s(60)
    idle = world.wake("idle")  # used since
    world.ready(idle, can_sleep=False, need_bytes=4 * GIB)
    world.set_free("w1", 7 * GIB)
    world.pass_s(60)
    world.ask("big")
    world.step()
    assert world.want_of(idle).state is STOPPED
    assert world.want_of(replica).state is ASLEEP


def test_it_stays_away_while_the_one_it_stopped_for_would_need_the_room_to_wake() -> None:
    models = (entry("m", memory=4 * GIB, min_asleep=1), entry("big", memory=8 * GIB, idle_after_s=300))
    world = World.of(*models, memory=8 * GIB)
    replica = loaded_ahead(world, "m")
    world.set_free("w1", 7 * GIB)
    world.ask("big")
    world.step()
    assert world.want_of(replica).state is STOPPED
    world.report(replica, STOPPED)
    world.set_free("w1", 8 * GIB)
    world.step()
    (big,) = world.wanted("big")
    world.ready(big, can_sleep=True, need_bytes=8 * GIB, memory_bytes=8 * GIB)
    world.answer_all("big")
    world.set_free("w1", 0)
    world.pass_s(61)
    world.report(big, ASLEEP, memory_bytes=GIB)
    world.set_free("w1", 7 * GIB)
    assert kinds(world.pass_s(10)) == []
    assert "min_asleep: needs 4.0 GiB" in world.explanations["m"].text
    assert kinds(world.pass_s(300)) == ["Stop"]
    world.report(big, STOPPED)
    world.set_free("w1", 8 * GIB)
    world.pass_s(1)
    assert world.wanted("m"), "there is room"


REQUESTS = st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from(["a", "b", "m", "n"])), max_size=8)


@settings(max_examples=30)
@given(
    requests=REQUESTS,
    budget=st.integers(4, 12),
    sleeps=st.fixed_dictionaries({m: st.none() | st.integers(1, 2) for m in "abmn"}),
)
def test_whatever_is_asked_nobody_leaves_for_it_and_it_comes_to_rest(
    requests: Sequence[tuple[int, str]], budget: int, sleeps: dict[str, int | None]
) -> None:
    """``m`` and ``n`` are kept asleep, ``a`` and ``b`` are not; sizes in GiB. Whoever asks is served as without it."""
    policy: dict[str, Any] = {"sleep_after_s": 2, "idle_after_s": 8, "failure_memory_s": 5}
    kept = [entry(model, min_asleep=1, memory=4 * GIB, **policy) for model in "mn"]
    others = [entry(model, memory=4 * GIB, **policy) for model in "ab"]
    rules = PlacementRules(min_residency_ms=1_000, max_wait_ms=5_000)
    world = World.of(*kept, *others, workers=0, rules=rules)
    world.add_worker("w1", memory=budget * GIB)
    asked = [Request(at, model) for at, model in requests]
    behaviour = {model: Kind(4 * GIB, asleep=None if size is None else size * GIB) for model, size in sleeps.items()}
    simulation = Simulation(world, behaviour, asked)
    starts: list[tuple[int, str]] = []
    evictions = 0

    def seen(actions: Sequence[Action]) -> None:
        nonlocal evictions
        for action in actions:
            if isinstance(action, Start):
                starts.append((simulation.now_ms, action.want.model))
            elif isinstance(action, Stop | Rest) and action.want.reason == StopReason.EVICTED:
                evictions += 1
                asker = action.reason.split(" ", 1)[0]
                assert world.waiting.get(asker), f"{action.want.model} left for {asker}, whom nobody waits for"

    simulation.on_decision = seen
    simulation.run(within_s=240)
    began = simulation.now_ms
    while simulation.now_ms < began + 30_000:
        simulation.step()
    loads, gone = len(starts), evictions
    while simulation.now_ms < began + 60_000:
        simulation.step()
    again = [model for _, model in starts[loads:]]
    assert evictions == gone, "nobody asks, nobody leaves"
    for model in "mn":
        if sleeps[model] is not None:
            assert again.count(model) <= 1, "what sleeps is loaded once"
            there = [r.state for r in world.reports["w1"].values() if r.model == model]
            assert there == [ASLEEP] or model in world.explanations, "or it is said why it is not there"
        else:
            assert again.count(model) <= 4, "what cannot is loaded ever less often"
