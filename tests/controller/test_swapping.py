"""More models than memory: who makes room, in whose turn, and that nobody is forgotten. In simulated fleets."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.actions import Action, Rest, Start, Stop
from controller.state import StopReason
from rewarm.config import PlacementRules
from rewarm.states import LIVE, LOADING, FailureReason, ReplicaState
from tests.controller.fleetview import GIB, World, entry
from tests.controller.simulator import Kind, Request, Simulation
from tests.depth import examples

QUICK = PlacementRules(min_residency_ms=1_000, max_wait_ms=10_000)


def fleet(
    kinds: dict[str, Kind],
    requests: list[Request],
    *,
    memory: int,
    workers: int = 1,
    rules: PlacementRules = QUICK,
    known: bool = True,
    load_attempts: int = 2,
) -> Simulation:
    entries = [
        entry(m, memory=kind.need if known else None, idle_after_s=3600, load_attempts=load_attempts)
        for m, kind in kinds.items()
    ]
    return Simulation(World.of(*entries, workers=workers, memory=memory, rules=rules), kinds, requests)


def test_two_models_on_one_place_swap_once_a_batch() -> None:
    """20 of each, interleaved, all at once."""
    requests = [Request(0, model, runs_ms=500) for _ in range(20) for model in ("a", "b")]
    simulation = fleet({m: Kind(10 * GIB) for m in "ab"}, requests, memory=16 * GIB)
    simulation.run(60)
    assert simulation.starts == ["a", "b"]
    assert any("serves those who wait for it first" in text for text in simulation.texts["b"]), simulation.texts


def test_a_model_that_is_always_asked_for_yields_after_its_turn() -> None:
    """Its newer requests queue then, instead of taking the hot path for ever."""
    hot = [Request(at, "a", runs_ms=1_000) for at in range(0, 60_000, 100)]
    cold = [Request(5_000, "b")]
    simulation = fleet({m: Kind(10 * GIB) for m in "ab"}, hot + cold, memory=16 * GIB)
    simulation.run(600)
    assert cold[0].waited_ms <= 10_000 + 1_000 + 300 + 1_000 + 500, "max_wait, what runs, its stop, the load, steps"
    assert simulation.starts == ["a", "b", "a"]


def test_a_load_that_takes_longer_than_the_bound_does_not_cost_the_turn() -> None:
    rules = PlacementRules(min_residency_ms=1_000, max_wait_ms=5_000)
    requests = [Request(0, model) for _ in range(20) for model in ("a", "b")]
    simulation = fleet({m: Kind(10 * GIB, load_ms=20_000) for m in "ab"}, requests, memory=16 * GIB, rules=rules)
    simulation.run(300)
    assert simulation.starts == ["a", "b"], "neither was thrown out before it had served anybody"


def test_the_least_recently_used_makes_room() -> None:
    requests = [Request(0, "a"), Request(3_000, "b"), Request(6_000, "a"), Request(9_000, "c")]
    simulation = fleet({m: Kind(7 * GIB) for m in "abc"}, requests, memory=16 * GIB)
    simulation.run(30)
    assert simulation.starts == ["a", "b", "c"]
    assert simulation.world.wanted("a")
    assert not simulation.world.wanted("b")
    assert "b stops first (least recently used, idle" in simulation.texts["c"][0]


def test_one_large_one_goes_instead_of_two_small_ones() -> None:
    kinds = {"small": Kind(2 * GIB), "little": Kind(2 * GIB), "large": Kind(8 * GIB), "next": Kind(6 * GIB)}
    requests = [Request(i * 3_000, m) for i, m in enumerate(kinds)]
    simulation = fleet(kinds, requests, memory=14 * GIB)
    simulation.run(30)
    assert [simulation.world.wanted(m) != [] for m in kinds] == [True, True, False, True]


def test_what_can_sleep_sleeps_and_comes_back_without_a_load() -> None:
    requests = [Request(0, "a"), Request(3_000, "b"), Request(6_000, "a"), Request(9_000, "b")]
    kinds = {m: Kind(10 * GIB, asleep=GIB) for m in "ab"}
    simulation = fleet(kinds, requests, memory=16 * GIB)
    simulation.run(60)
    assert simulation.starts == ["a", "b"], "each was loaded once"
    assert "a sleeps first" in simulation.texts["b"][0]


def test_one_that_falls_asleep_for_another_does_not_come_back_for_its_newer_requests() -> None:
    """They wait for its next turn: what runs ends, it sleeps, the other one is served, then it wakes."""
    hot = [Request(at, "a", runs_ms=1_000) for at in range(0, 30_000, 100)]
    cold = Request(5_000, "b")
    simulation = fleet({m: Kind(10 * GIB, asleep=GIB) for m in "ab"}, [*hot, cold], memory=16 * GIB)
    simulation.run(300)
    assert cold.waited_ms <= 10_000 + 1_000 + 1_000 + 500, "max_wait, what runs, the load, steps"
    assert simulation.starts == ["a", "b"]
    assert any("its next turn" in text for text in simulation.texts["a"])


def test_where_sleep_does_not_free_enough_it_stops() -> None:
    requests = [Request(0, "a"), Request(3_000, "b")]
    kinds = {"a": Kind(10 * GIB, asleep=9 * GIB), "b": Kind(12 * GIB)}
    simulation = fleet(kinds, requests, memory=16 * GIB)
    simulation.run(60)
    assert simulation.world.stopping("a") or not simulation.world.wanted("a")


def test_a_memory_that_is_coming_is_nobody_elses() -> None:
    """A large model waits for two to leave; a small one that would fit meanwhile does not take it from under it."""
    kinds = {"a": Kind(7 * GIB, stop_ms=3_000), "b": Kind(7 * GIB), "large": Kind(14 * GIB), "small": Kind(6 * GIB)}
    requests = [Request(0, "a"), Request(0, "b"), Request(5_000, "large")]
    requests += [Request(at, "small") for at in range(5_500, 8_000, 100)]
    simulation = fleet(kinds, requests, memory=15 * GIB)
    simulation.run(60)
    assert simulation.starts.index("large") < simulation.starts.index("small")
    assert requests[2].waited_ms < 5_500, "its victims' stops and its own load"


def test_twenty_models_asked_at_once_under_a_budget_for_six() -> None:
    kinds = {f"m{i:02}": Kind(2 * GIB, load_ms=2_000) for i in range(20)}
    requests = [Request(0, model) for model in kinds]
    simulation = fleet(kinds, requests, memory=12 * GIB)
    simulation.run(120)
    assert sorted(simulation.starts) == sorted(kinds), "each was loaded once"
    assert all(simulation.texts[m] for m in kinds if m not in simulation.starts[:4]), "each that waited knows why"


def test_needs_that_nobody_knows_yet_are_learnt_and_cost_no_attempt() -> None:
    kinds = {f"m{i:02}": Kind(2 * GIB, load_ms=2_000) for i in range(10)}
    simulation = fleet(kinds, [Request(0, m) for m in kinds], memory=4 * GIB, known=False, load_attempts=1)
    simulation.run(300)
    assert simulation.world.failed == []


def test_one_that_its_agent_has_not_admitted_yet_has_its_room_all_the_same() -> None:
    """It is reported then, and in no ledger."""
    rules = PlacementRules(concurrent_loads=3)
    world = World.of(entry("a", memory=10 * GIB), entry("b", memory=10 * GIB), memory=16 * GIB, rules=rules)
    world.ask("a")
    world.step()
    world.report(world.wanted("a")[0], ReplicaState.COLD, need_bytes=10 * GIB, needs={})
    world.ask("b")
    world.pass_s(0.1)
    assert not world.wanted("b")
    assert "needs 10.0 GiB, 6.0 GiB of 16.0 GiB is free" in world.explanations["b"].text


def test_no_more_loads_at_once_than_allowed() -> None:
    kinds = {f"m{i}": Kind(GIB) for i in range(6)}
    rules = PlacementRules(concurrent_loads=2)
    simulation = fleet(kinds, [Request(0, m) for m in kinds], memory=16 * GIB, rules=rules)
    most = 0

    def count(actions: list[Action]) -> None:
        nonlocal most
        states = [r.state for reports in simulation.world.reports.values() for r in reports.values()]
        most = max(most, sum(state in LOADING for state in states))

    simulation.on_decision = count
    simulation.run(60)
    assert most == 2
    assert "2 loads are under way" in simulation.texts["m5"][0]


def test_no_more_models_at_once_than_allowed() -> None:
    kinds = {f"m{i}": Kind(GIB, asleep=GIB // 8) for i in range(5)}
    rules = PlacementRules(max_models=2, min_residency_ms=0)
    simulation = fleet(kinds, [Request(i * 2_000, m) for i, m in enumerate(kinds)], memory=16 * GIB, rules=rules)
    most = 0

    def count(actions: list[Action]) -> None:
        nonlocal most
        live = [r for reports in simulation.world.reports.values() for r in reports.values() if r.state in LIVE]
        most = max(most, len({r.model for r in live}))

    simulation.on_decision = count
    simulation.run(60)
    assert most == 2


def test_eviction_off_leaves_everything_where_it_is() -> None:
    rules = PlacementRules(evict=False)
    simulation = fleet({m: Kind(10 * GIB) for m in "ab"}, [Request(0, "a"), Request(3_000, "b")], memory=16 * GIB)
    simulation.world.rules = rules
    simulation.world.memory = replace(simulation.world.memory, rules=rules)
    with pytest.raises(AssertionError, match="eviction is off"):
        simulation.run(60)
    assert simulation.world.wanted("a")


def test_a_start_that_what_is_pinned_leaves_no_room_for_fails_at_once() -> None:
    world = World.of(
        entry("pinned", memory=10 * GIB, pinned=True, idle_after_s=3600),
        entry("other", memory=10 * GIB),
        memory=16 * GIB,
        rules=QUICK,
    )
    kinds = {m: Kind(10 * GIB) for m in ("pinned", "other")}
    simulation = Simulation(world, kinds, [Request(0, "pinned"), Request(5_000, "other")])
    while not world.failed and simulation.now_ms < 20_000:
        simulation.step()
    assert simulation.now_ms < 6_000
    assert world.failed[0].failure is not None
    assert world.failed[0].failure.reason == "no_room"
    assert "pinned is pinned" in world.failed[0].message
    assert world.wanted("pinned")


def test_what_can_never_fit_unloads_nobody() -> None:
    world = World.of(entry("a", memory=8 * GIB), entry("huge", memory=64 * GIB), memory=16 * GIB, rules=QUICK)
    replica = world.wake("a")
    world.report(replica, ReplicaState.READY, need_bytes=8 * GIB, memory_bytes=8 * GIB)
    for _ in range(50):
        world.ask("huge")
        world.pass_s(0.5)
        for wanted in world.wanted("huge"):
            world.fails(wanted, FailureReason.NEVER_FITS, "needs 64 GiB of 16")
        world.pass_s(0.5)
    assert world.wanted("a") == [replica]
    assert world.stopping("a") == []


@pytest.mark.parametrize("asker", ["low", "normal", "high"])
def test_priority_of_the_business(asker: str) -> None:
    """A more important model takes the place of one in use; a less important one waits until it is idle."""
    bands = {"low": 2, "normal": 1, "high": 0}
    world = World.of(
        entry("a", memory=10 * GIB, priority=1, idle_after_s=3600),
        entry("b", memory=10 * GIB, priority=bands[asker], idle_after_s=3600),
        memory=16 * GIB,
        rules=QUICK,
    )
    hot = [Request(at, "a", runs_ms=1_000) for at in range(0, 30_000, 100)]
    other = Request(5_000, "b")
    simulation = Simulation(world, {m: Kind(10 * GIB) for m in "ab"}, [*hot, other])
    simulation.run(200)
    if asker == "high":
        assert other.waited_ms < 3_000
    elif asker == "normal":
        assert 10_000 <= other.waited_ms < 14_000, "after a's turn"
    else:
        assert other.waited_ms >= 25_000, "when a had nothing to do any more"
        assert "has priority normal" in " ".join(simulation.texts["b"])


def test_jobs_wait_for_what_serves_requests() -> None:
    world = World.of(entry("a", memory=10 * GIB), entry("b", memory=10 * GIB), memory=16 * GIB, rules=QUICK)
    hot = [Request(at, "a", runs_ms=1_000) for at in range(0, 60_000, 500)]
    simulation = Simulation(world, {m: Kind(10 * GIB) for m in "ab"}, hot)
    while simulation.now_ms < 3_000:
        simulation.step()
    world.submit("b")
    while simulation.now_ms < 60_000:
        simulation.step()
        assert not world.wanted("b")
    while not world.wanted("b"):
        assert simulation.now_ms < 70_000
        simulation.step()


# --- whatever happens ------------------------------------------------------------------------------------------------


@settings(max_examples=examples(25))
@given(
    seed=st.integers(0, 2**32),
    models=st.integers(2, 7),
    workers=st.integers(1, 2),
    places=st.integers(1, 3),
    sleepers=st.booleans(),
    known=st.booleans(),
)
def test_everybody_is_served_within_the_bound_and_nobody_suffers_for_it(
    seed: int, models: int, workers: int, places: int, sleepers: bool, known: bool
) -> None:
    chance = random.Random(seed)
    names = [f"m{i}" for i in range(models)]
    kinds = {
        m: Kind(
            need=chance.randint(2, 4) * GIB,
            load_ms=chance.choice((300, 1_000, 4_000)),
            stop_ms=chance.choice((100, 1_000)),
            asleep=GIB // 4 if sleepers and chance.random() < 0.7 else None,
        )
        for m in names
    }
    requests = [
        Request(chance.randint(0, 20_000), chance.choice(names), runs_ms=chance.choice((100, 500, 2_000)))
        for _ in range(chance.randint(1, 120))
    ]
    simulation = fleet(kinds, requests, memory=max(places * 3, 4) * GIB, workers=workers, known=known)
    world = simulation.world

    def check(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Stop | Rest) and action.want.reason == StopReason.EVICTED:
                report = world.reports[action.want.worker].get(action.want.replica)
                assert report is not None
                assert report.state in (ReplicaState.READY, ReplicaState.ASLEEP), "evicted while it was loading"
                if action.want.if_last_activity_ms is not None:
                    assert not report.in_flight
        for model in names:
            assert len(world.wanted(model)) <= 1, "two loads of one model"

    simulation.on_decision = check
    # Everybody else may have a turn before: max_wait, the longest request, stop, load, and what steps round up.
    turn_ms = 10_000 + 2_000 + 1_000 + 4_000 + 1_000
    simulation.run(20 + models * turn_ms / 1000)
    assert world.failed == []
    for request in requests:
        assert request.waited_ms <= models * turn_ms
    swaps = len(simulation.starts) + sum(isinstance(a, Rest) for a in world.log)
    assert swaps <= models + simulation.now_ms / QUICK.min_residency_ms * places * workers * 2, "it thrashes"
    assert all(isinstance(a, Start) is False or a.reason for a in world.log)
