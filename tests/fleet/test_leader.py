"""One leader at a time, and nothing written outside its term."""

from __future__ import annotations

import pytest

from fleet import Commands, FleetClient, Leader, LostLeadership, Publisher, Registry
from rewarm.errors import CommandRefused
from rewarm.messages import CatalogueEntry, ModelPolicy, ModelStatus, Want
from rewarm.states import ReplicaState
from tests.fleet.helpers import advance, spec

pytestmark = pytest.mark.redis


class StoppedClock:
    """A monotonic clock that moves when told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def entry(model: str) -> CatalogueEntry:
    return CatalogueEntry(model=model, aliases=(), spec=spec(model), spec_hash="h", policy=ModelPolicy())


def want(replica: str, worker: str, term: int = 0) -> Want:
    return Want(
        replica=replica, worker=worker, model="m", spec=spec(), spec_hash="h", state=ReplicaState.READY, term=term
    )


@pytest.mark.asyncio
async def test_one_candidate_leads_and_stays(fleet_client: FleetClient) -> None:
    one, two = Leader(fleet_client, "one"), Leader(fleet_client, "two")
    term = await one.campaign()
    assert term is not None
    assert await two.campaign() is None
    assert (one.trusted(), two.trusted(), two.seen) == (True, False, "one")
    assert await one.campaign() == term  # a renewal is the same term


@pytest.mark.asyncio
async def test_another_one_takes_over_when_the_term_ran_out(fleet_client: FleetClient) -> None:
    one, two = Leader(fleet_client, "one"), Leader(fleet_client, "two")
    first = await one.campaign()
    await advance(fleet_client, 5.1)
    second = await two.campaign()
    assert first is not None and second is not None and second > first
    assert await one.campaign() is None
    assert not one.trusted()


@pytest.mark.asyncio
async def test_a_leader_that_renews_too_late_gets_a_new_term(fleet_client: FleetClient) -> None:
    """What it decided before may have been decided otherwise since."""
    one = Leader(fleet_client, "one")
    first = await one.campaign()
    await advance(fleet_client, 5.1)
    second = await one.campaign()
    assert first is not None and second is not None and second > first


@pytest.mark.asyncio
async def test_trust_ends_before_the_term_does(fleet_client: FleetClient) -> None:
    clock = StoppedClock()
    leader = Leader(fleet_client, "one", ttl_ms=5000, margin_ms=500, clock=clock)
    await leader.campaign()
    clock.seconds += 4.4
    assert leader.trusted()
    clock.seconds += 0.2
    assert not leader.trusted()
    with pytest.raises(LostLeadership):
        await Publisher(fleet_client, leader).forget_status("m")
    await leader.campaign()
    assert leader.trusted()


@pytest.mark.asyncio
async def test_the_trust_window_starts_with_the_attempt_not_with_its_answer(fleet_client: FleetClient) -> None:
    clock = StoppedClock()
    leader = Leader(fleet_client, "one", ttl_ms=5000, margin_ms=500, clock=clock)
    scripts_run = fleet_client.scripts.run

    async def slow(*args: object, **kwargs: object) -> object:
        answer = await scripts_run(*args, **kwargs)  # type: ignore[arg-type]
        clock.seconds += 4.6  # the answer took its time
        return answer

    fleet_client.scripts.run = slow  # type: ignore[method-assign]
    await leader.campaign()
    assert not leader.trusted()


@pytest.mark.asyncio
async def test_resigning_lets_another_one_lead_at_once_in_a_higher_term(fleet_client: FleetClient) -> None:
    one, two = Leader(fleet_client, "one"), Leader(fleet_client, "two")
    first = await one.campaign()
    await one.resign()
    await one.resign()
    second = await two.campaign()
    assert first is not None and second is not None and second > first
    # A stale resignation does not touch the new term.
    one.term = first
    await one.resign()
    assert await Leader(fleet_client, "three").campaign() is None


@pytest.mark.asyncio
async def test_terms_grow_even_if_the_servers_clock_went_back(fleet_client: FleetClient) -> None:
    future = 4_000_000_000_000_000  # µs
    await fleet_client.call("HSET", fleet_client.keys.leader, "owner", "x", "term", future, "deadline", 0)
    assert await Leader(fleet_client, "one").campaign() == future + 1


@pytest.mark.asyncio
async def test_what_the_leader_publishes_is_read_in_the_fleets_view(fleet_client: FleetClient) -> None:
    leader = Leader(fleet_client, "one")
    term = await leader.campaign()
    assert term is not None
    publisher, registry = Publisher(fleet_client, leader), Registry(fleet_client)
    await publisher.catalogue({"m": entry("m"), "old": entry("old")})
    await publisher.status(ModelStatus(model="old", attempts=2))
    await publisher.status(ModelStatus(model="m", attempts=1))
    await publisher.want([want("m-1", "w1", term), want("m-2", "w2", term)])
    view = await registry.snapshot()
    assert set(view.catalogue) == {"m", "old"}
    assert view.statuses["m"].attempts == 1
    assert {worker: list(wants) for worker, wants in view.wants.items()} == {"w1": ["m-1"], "w2": ["m-2"]}
    assert (view.leader, view.term) == ("one", term)
    assert [w.replica for w in await registry.wants("w1")] == ["m-1"]

    # A new catalogue replaces the old one, and what is remembered of models that are gone.
    await publisher.catalogue([entry("m")])
    await publisher.forget_status("m")
    await publisher.unwant("w1", "m-1")
    view = await registry.snapshot()
    assert (set(view.catalogue), dict(view.statuses)) == ({"m"}, {})
    assert list(view.wants) == ["w2"]
    await publisher.unwant("w2", "m-2")
    keys = fleet_client.keys
    assert await fleet_client.call("EXISTS", keys.want("w1"), keys.want("w2"), keys.wanted, keys.status) == 0


@pytest.mark.asyncio
async def test_an_overthrown_leader_publishes_nothing(fleet_client: FleetClient) -> None:
    one = Leader(fleet_client, "one")
    await one.campaign()
    publisher = Publisher(fleet_client, one)
    await publisher.catalogue([entry("m")])
    await advance(fleet_client, 5.1)
    await Leader(fleet_client, "two").campaign()
    # `one` was suspended and still believes in itself.
    for write in (
        publisher.catalogue([]),
        publisher.want([want("r", "w")]),
        publisher.unwant("w", "r"),
        publisher.status(ModelStatus(model="m")),
        publisher.forget_status("m"),
    ):
        with pytest.raises(LostLeadership):
            await write
    view = await Registry(fleet_client).snapshot()
    assert (set(view.catalogue), dict(view.wants), dict(view.statuses)) == ({"m"}, {}, {})


@pytest.mark.asyncio
async def test_operators_commands_reach_the_leader_once(fleet_client: FleetClient) -> None:
    leader = Leader(fleet_client, "one")
    term = await leader.campaign()
    assert term is not None
    commands = Commands(fleet_client)
    await commands.send("wake", "m")
    await commands.send("drain", "worker-1")
    with pytest.raises(LostLeadership):
        await commands.take("one", term - 1)
    taken = await commands.take("one", term)
    assert [(command.kind, command.target) for command in taken] == [("wake", "m"), ("drain", "worker-1")]
    assert await commands.take("one", term) == []


@pytest.mark.asyncio
async def test_commands_that_nobody_takes_are_bounded(fleet_client: FleetClient) -> None:
    await fleet_client.call("RPUSH", fleet_client.keys.commands, *(b"x" for _ in range(1000)))
    await fleet_client.call("PEXPIRE", fleet_client.keys.commands, 60_000)
    with pytest.raises(CommandRefused):
        await Commands(fleet_client).send("sleep", "m")
