"""The receipts of wakes in Redis: told by workers, completed by whoever waited, bounded, forgotten."""

from __future__ import annotations

import pytest

from fleet import FleetClient, Wakes
from fleet.leaks import find_leaks
from fleet.wakes import WAITERS_KEPT, WAKES_KEPT, WAKES_LISTED
from rewarm.messages import PhaseTiming, Waiter, Wake
from rewarm.states import ReplicaState, Tier

pytestmark = pytest.mark.redis


def wake(replica: str = "m-1", ready_at_ms: int = 1000, tier: Tier = Tier.COLD) -> Wake:
    timings = (PhaseTiming(phase=ReplicaState.STARTING, started_s=0, duration_s=2.0),)
    return Wake(replica=replica, worker="w", model="m", ready_at_ms=ready_at_ms, tier=tier, timings=timings)


@pytest.mark.asyncio
async def test_the_newest_first_with_those_that_waited_longest_first(fleet_client: FleetClient) -> None:
    wakes = Wakes(fleet_client)
    first, second = wake(), wake("n-1", 2000, Tier.POOLED)
    await wakes.record(first)
    await wakes.record(second)
    short, long = Waiter(id="req-1", tenant="t", waited_s=1.0), Waiter(id="job-1", tenant="t", waited_s=5.0)
    await wakes.waited([(first, short), (second, short), (first, long)])
    told = await wakes.last(10)
    assert [record.wake for record in told] == [second, first]
    assert (told[1].waited, told[1].waiters) == (2, (long, short))
    assert [record.wake for record in await wakes.last(1)] == [second]
    assert await wakes.of("nobody") == []
    assert await find_leaks(fleet_client) == []


@pytest.mark.asyncio
async def test_what_is_said_again_counts_once(fleet_client: FleetClient) -> None:
    """A gateway or a worker whose reply was lost says it again."""
    wakes = Wakes(fleet_client)
    for _ in range(2):
        await wakes.record(wake())
        await wakes.waited([(wake(), Waiter(id="req-1", tenant="t"))])
    (record,) = await wakes.last(10)
    assert record.waited == 1


@pytest.mark.asyncio
async def test_those_that_waited_may_be_told_of_before_the_wake_itself(fleet_client: FleetClient) -> None:
    wakes = Wakes(fleet_client)
    await wakes.waited([(wake(), Waiter(id="req-1", tenant="t"))])
    assert await wakes.last(10) == []
    await wakes.record(wake())
    assert [record.waited for record in await wakes.of("m-1")] == [1]


@pytest.mark.asyncio
async def test_of_a_crowd_the_first_are_named_and_all_are_counted(fleet_client: FleetClient) -> None:
    wakes = Wakes(fleet_client)
    await wakes.record(wake())
    await wakes.waited([(wake(), Waiter(id=f"req-{n}", tenant="t")) for n in range(500)])
    (record,) = await wakes.of("m-1")
    assert (record.waited, len(record.waiters)) == (500, WAITERS_KEPT)


@pytest.mark.asyncio
async def test_a_replica_that_wakes_all_day_keeps_its_last_wakes(fleet_client: FleetClient) -> None:
    wakes = Wakes(fleet_client)
    for n in range(3 * WAKES_KEPT):
        one = wake(ready_at_ms=1000 + n, tier=Tier.ASLEEP)
        await wakes.record(one)
        await wakes.waited([(one, Waiter(id=f"req-{n}", tenant="t"))])
    kept = await wakes.of("m-1")
    assert [record.wake.ready_at_ms - 1000 for record in kept] == list(range(3 * WAKES_KEPT))[: -WAKES_KEPT - 1 : -1]
    assert all(record.waited == 1 for record in kept)
    size = await fleet_client.call("HLEN", fleet_client.keys.wakes_of("m-1"))
    assert size <= 3 * WAKES_KEPT
    assert len(await wakes.last(1000)) == WAKES_KEPT, "what is listed and kept no longer is left out"


@pytest.mark.asyncio
async def test_the_list_is_bounded_and_everything_ends_by_itself(fleet_client: FleetClient) -> None:
    wakes = Wakes(fleet_client)
    for n in range(WAKES_LISTED + 5):
        await wakes.record(wake(f"m-{n}"))
    assert len(await wakes.last(1000)) == WAKES_LISTED
    for key in (fleet_client.keys.wakes, fleet_client.keys.wakes_of("m-0")):
        assert await fleet_client.call("PTTL", key) > 0
