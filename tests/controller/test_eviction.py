"""Who gives up memory for whom, as a table: one resident, one that asks, one answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.eviction import Asker, Leaving, Resident, Shortage, Use, choose, may_go
from rewarm.config import PlacementRules
from tests.controller.fleetview import GIB
from tests.depth import examples

RULES = PlacementRules(min_residency_ms=10_000, max_wait_ms=60_000)
NOW = 1_000_000
HIGH, NORMAL, LOW = 0, 1, 2

ASKER = Asker("asker", NORMAL, Use.REQUESTS, since_ms=NOW - 1_000)
PATIENT = replace(ASKER, since_ms=NOW - 61_000)
IDLE = Resident(
    replica="r-1",
    model="coder",
    priority=NORMAL,
    use=Use.NOBODY,
    ready_at_ms=NOW - 300_000,
    last_used_ms=NOW - 12_000,
    stop_frees={"ram": 4 * GIB},
)
BUSY = replace(IDLE, use=Use.REQUESTS, running=2, last_used_ms=NOW)
HOT = replace(BUSY, waiting=7)


@pytest.mark.parametrize(
    ("resident", "asker", "answer"),
    [
        (IDLE, ASKER, "least recently used, idle 12 s"),
        (replace(IDLE, priority=HIGH), ASKER, "least recently used, idle 12 s"),
        (IDLE, replace(ASKER, use=Use.NOBODY), "least recently used, idle 12 s"),
        (replace(IDLE, asleep=True), ASKER, "asleep, not used for 12 s"),
        (replace(IDLE, last_used_ms=NOW - 500), ASKER, "nobody waits for it"),
        (BUSY, ASKER, "it has served all who waited"),
        (replace(HOT, priority=LOW), ASKER, "priority low yields to normal"),
        (replace(HOT, use=Use.JOBS), ASKER, "only jobs wait for it"),
        (HOT, PATIENT, "its turn of 1 min 00 s is over"),
        (replace(IDLE, ready_at_ms=NOW - 3_000), PATIENT, "least recently used, idle 12 s"),
        (replace(IDLE, loading=True), PATIENT, "nobody waits for its load any more"),
    ],
)
def test_it_goes(resident: Resident, asker: Asker, answer: str) -> None:
    found = may_go(resident, asker, RULES, NOW)
    assert isinstance(found, Leaving), found
    assert found.why == answer
    assert found.if_idle == (resident.use is Use.NOBODY and not resident.loading)


@pytest.mark.parametrize(
    ("resident", "asker", "answer"),
    [
        (replace(IDLE, keeps="is pinned"), PATIENT, "coder is pinned"),
        (replace(IDLE, loading=True), ASKER, "coder is loading"),
        (replace(IDLE, loading=True, waiting=1), PATIENT, "coder is loading"),
        (replace(IDLE, ready_at_ms=NOW - 3_000), ASKER, "coder was loaded 3 s ago and stays for 10 s"),
        (replace(BUSY, priority=HIGH), PATIENT, "coder is in use and has priority high"),
        (BUSY, replace(PATIENT, use=Use.NOBODY), "coder is in use"),
        (HOT, replace(PATIENT, use=Use.JOBS), "coder serves requests, which come before jobs"),
        (HOT, ASKER, "coder serves those who wait for it first (7), for 59 s at most"),
        (
            replace(HOT, ready_at_ms=NOW - 20_000),
            PATIENT,
            "coder serves those who wait for it first (7), for 40 s at most",
        ),
    ],
)
def test_it_stays(resident: Resident, asker: Asker, answer: str) -> None:
    assert may_go(resident, asker, RULES, NOW) == answer


def names(residents: list[Resident], bytes_: int, asker: Asker = ASKER, models: int = 0) -> list[str]:
    choice = choose(residents, Shortage({"ram": bytes_} if bytes_ else {}, models), asker, RULES, NOW)
    return [f"{one.resident.replica}{' sleeps' if one.sleep else ''}" for one in choice.leaving]


def one(replica: str, gib: int, idle_s: int = 60, **changes: object) -> Resident:
    return replace(
        IDLE,
        replica=replica,
        model=replica,
        stop_frees={"ram": gib * GIB},
        last_used_ms=NOW - idle_s * 1000,
        **changes,  # type: ignore[arg-type]
    )


def test_the_least_recently_used_first() -> None:
    assert names([one("new", 4, idle_s=20), one("old", 4, idle_s=90)], 4 * GIB) == ["old"]


def test_the_smallest_set_that_is_enough() -> None:
    assert names([one("old", 2, 90), one("older", 2, 120), one("large", 6, 20)], 6 * GIB) == ["large"]
    assert names([one("old", 2, 90), one("older", 2, 120), one("large", 6, 20)], 8 * GIB) == ["older", "large"]


def test_idle_ones_before_those_in_use_and_less_important_ones_first() -> None:
    used = one("used", 4, use=Use.REQUESTS, priority=LOW)
    assert names([used, one("idle", 4, 2)], 4 * GIB) == ["idle"]
    assert names([one("normal", 4, 90), one("low", 4, 20, priority=LOW)], 4 * GIB) == ["low"]


def test_sleep_where_that_is_enough() -> None:
    sleeper = one("sleeper", 8, sleep_frees={"ram": 6 * GIB})
    assert names([sleeper], 6 * GIB) == ["sleeper sleeps"]
    assert names([sleeper], 7 * GIB) == ["sleeper"]
    assert names([sleeper], 0, models=1) == ["sleeper"], "asleep it still counts as a model"


def test_nobody_goes_for_nothing() -> None:
    """What may go is not enough: then it need not go at all yet."""
    young = one("young", 8, ready_at_ms=NOW - 1_000)
    choice = choose([one("old", 2), young], Shortage({"ram": 8 * GIB}), ASKER, RULES, NOW)
    assert choice.leaving == ()
    assert choice.stays == ("young was loaded 1 s ago and stays for 10 s",)
    assert not choice.never


def test_what_can_never_be_enough_is_said() -> None:
    kept = one("kept", 8, keeps="is pinned")
    assert choose([one("old", 2), kept], Shortage({"ram": 4 * GIB}), ASKER, RULES, NOW).never


residents = st.builds(
    Resident,
    replica=st.uuids().map(str),
    model=st.uuids().map(str),
    priority=st.integers(0, 2),
    use=st.sampled_from(Use),
    ready_at_ms=st.integers(NOW - 100_000, NOW),
    last_used_ms=st.integers(NOW - 100_000, NOW),
    running=st.integers(0, 3),
    waiting=st.integers(0, 3),
    keeps=st.sampled_from(["", "", "is pinned"]),
    loading=st.booleans(),
    stop_frees=st.builds(lambda size: {"ram": size}, st.integers(0, 8)),
    sleep_frees=st.just({}),
)


@settings(max_examples=examples(60))
@given(
    st.lists(residents, max_size=12),
    st.integers(0, 60),
    st.integers(0, 3),
    st.builds(Asker, st.just("asker"), st.integers(0, 2), st.sampled_from(Use), st.integers(NOW - 100_000, NOW)),
)
def test_the_choice_is_sufficient_minimal_and_spares_those_it_must(
    found: list[Resident], missing: int, models: int, asker: Asker
) -> None:
    leaving = choose(found, Shortage({"ram": missing} if missing else {}, models), asker, RULES, NOW).leaving
    for one_ in leaving:
        assert not one_.resident.keeps
        assert not (one_.resident.use is not Use.NOBODY and one_.if_idle)
        if one_.resident.use is not Use.NOBODY and not one_.resident.loading:
            assert one_.resident.priority >= asker.priority, "a more important one was taken in use"
            assert asker.use is not Use.NOBODY
    if leaving:
        freed = [one_.resident.stop_frees["ram"] for one_ in leaving]
        assert sum(freed) >= missing
        assert len(leaving) >= models
        if len(leaving) > models:
            assert all(sum(freed) - bytes_ < missing for bytes_ in freed), "one of them leaves for nothing"
