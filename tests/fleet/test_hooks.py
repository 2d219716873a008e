"""The outbox: what is to be told about jobs is claimed by one gateway at a time, in order, and forgotten by none."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleet import FleetClient
from fleet.hooks import Delivery, Hooks, HookStatus
from tests.fleet.helpers import advance

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

LEASE = timedelta(seconds=30)
SOON = timedelta(seconds=5)


async def announce(client: FleetClient, job: str, *events: str) -> None:
    """What the scripts that end a job do."""
    now = await client.time_ms()
    for event in events:
        await client.call("RPUSH", client.keys.outbox(job), f"{event} {now}")
    await client.call("PEXPIRE", client.keys.outbox(job), 60_000)
    await client.call("ZADD", client.keys.hooks, "NX", now, job)


async def claim(hooks: Hooks, name: str, limit: int = 10) -> list[Delivery]:
    return await hooks.claim(name, limit, LEASE)


async def test_events_of_a_job_are_told_one_after_the_other(fleet_client: FleetClient) -> None:
    hooks = Hooks(fleet_client)
    await announce(fleet_client, "job_a", "in_progress", "completed")
    (first,) = await claim(hooks, "c1")
    assert (first.event, first.seq, first.tries) == ("in_progress", 0, 0)
    assert await claim(hooks, "c2") == [], "the second event waits for the first"
    assert await hooks.done(first)
    (second,) = await claim(hooks, "c3")
    assert (second.event, second.seq) == ("completed", 1)
    assert await hooks.done(second)
    assert await fleet_client.call("EXISTS", fleet_client.keys.hooks) == 0, "nothing is due any more"
    assert await claim(hooks, "c4") == []
    assert await hooks.status(["job_a"]) == [HookStatus(0, 2, 0, 2, None, None)]


async def test_a_failed_try_is_counted_and_comes_again_when_it_is_due(fleet_client: FleetClient) -> None:
    hooks = Hooks(fleet_client)
    await announce(fleet_client, "job_a", "completed")
    (delivery,) = await claim(hooks, "c1")
    assert await hooks.retry(delivery, SOON, "503")
    (status,) = await hooks.status(["job_a"])
    assert (status.waiting, status.tries, status.last_error) == (1, 1, "503")
    assert status.next_ms is not None
    assert status.next_ms > await fleet_client.time_ms()
    assert await claim(hooks, "c2") == []
    await advance(fleet_client, 5.1)
    (again,) = await claim(hooks, "c3")
    assert (again.seq, again.tries) == (0, 1)
    assert await hooks.give_up(again, "410 Gone")
    assert await hooks.status(["job_a"]) == [HookStatus(0, 0, 1, 2, "410 Gone", None)]


async def test_deferring_spends_no_try(fleet_client: FleetClient) -> None:
    hooks = Hooks(fleet_client)
    await announce(fleet_client, "job_a", "completed")
    (delivery,) = await claim(hooks, "c1")
    assert await hooks.defer(delivery, SOON)
    assert await claim(hooks, "c2") == []
    await advance(fleet_client, 5.1)
    (again,) = await claim(hooks, "c3")
    assert again.tries == 0
    assert await hooks.done(again)


async def test_the_delivery_of_a_dead_gateway_goes_to_another(fleet_client: FleetClient) -> None:
    hooks = Hooks(fleet_client)
    await announce(fleet_client, "job_a", "completed")
    (lost,) = await claim(hooks, "c1")
    await advance(fleet_client, 29)
    assert await claim(hooks, "c2") == [], "its lease runs"
    await advance(fleet_client, 1.1)
    (taken,) = await claim(hooks, "c3")
    assert (taken.event, taken.seq) == (lost.event, lost.seq)
    assert not await hooks.done(lost), "it is no longer its own"
    assert not await hooks.retry(lost, SOON, "late")
    assert await hooks.done(taken)


async def test_a_repeat_of_any_call_changes_nothing(fleet_client: FleetClient) -> None:
    hooks = Hooks(fleet_client)
    await announce(fleet_client, "job_a", "in_progress", "completed")
    (delivery,) = await claim(hooks, "c1")
    assert await hooks.done(delivery)
    assert not await hooks.done(delivery), "the second event is still to be told"
    (second,) = await claim(hooks, "c2")
    assert second.event == "completed"
    assert await hooks.done(second)


async def test_two_gateways_never_hold_the_same(fleet_client: FleetClient) -> None:
    hooks = Hooks(fleet_client)
    for n in range(20):
        await announce(fleet_client, f"job_{n}", "completed")
    one = await claim(hooks, "c1", limit=12)
    two = await claim(hooks, "c2", limit=12)
    assert (len(one), len(two)) == (12, 8)
    assert not {d.job for d in one} & {d.job for d in two}
    for delivery in (*one, *two):
        assert await hooks.done(delivery)


async def test_of_two_that_saw_it_due_one_gets_it(fleet_client: FleetClient) -> None:
    """Looking what is due and claiming it are two steps; in between another gateway may have claimed it."""
    hooks, keys = Hooks(fleet_client), fleet_client.keys
    await announce(fleet_client, "job_a", "completed")
    due = await fleet_client.scripts.run("hook_due", [keys.hooks], [10])
    assert due == [b"job_a"]
    (delivery,) = await claim(hooks, "c1")
    places = [keys.hooks, keys.outbox("job_a"), keys.hooked("job_a"), keys.ticket("job_a")]
    assert await fleet_client.scripts.run("hook_claim", places, ["job_a", "c2", 1000]) is None
    repeat = await fleet_client.scripts.run("hook_claim", places, ["job_a", "c1", 1000])
    assert repeat[0] == b"completed", "whose reply was lost asks again"
    assert await hooks.done(delivery)


async def test_a_job_that_is_gone_is_dropped(fleet_client: FleetClient) -> None:
    hooks = Hooks(fleet_client)
    await announce(fleet_client, "job_a", "completed")
    await fleet_client.call("DEL", fleet_client.keys.outbox("job_a"))  # its time was over
    assert await claim(hooks, "c1") == []
    await announce(fleet_client, "job_b", "in_progress", "completed")
    (told,) = await claim(hooks, "c2")
    assert await hooks.done(told)
    await hooks.drop("job_b")
    keys = fleet_client.keys
    assert await fleet_client.call("EXISTS", keys.hooks, keys.outbox("job_b"), keys.hooked("job_b")) == 0
    assert await claim(hooks, "c3") == []
