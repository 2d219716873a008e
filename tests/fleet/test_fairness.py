"""Start-time fair queueing inside a band: nobody's backlog is another one's delay."""

from __future__ import annotations

import pytest

from fleet import FleetClient, Queue
from tests.fleet.helpers import claim, enqueue, ids, tickets

pytestmark = pytest.mark.redis


@pytest.fixture
def queue(fleet_client: FleetClient) -> Queue:
    return Queue(fleet_client)


async def drain(queue: Queue, at_once: int = 4) -> list[str]:
    """Serve everything, ``at_once`` slots at a time; the order of the starts."""
    order: list[str] = []
    while True:
        claimed = await claim(queue, at_once)
        order += tickets(claimed)
        for grant in claimed.grants:
            assert await queue.redeem(grant.ticket, grant.grant)
        if not claimed.grants:
            return order


@pytest.mark.asyncio
async def test_two_tenants_with_150_and_50_requests(queue: Queue) -> None:
    for id_ in ids(150, "a"):
        await enqueue(queue, id_, tenant="A")
    for id_ in ids(50, "b"):
        await enqueue(queue, id_, tenant="B")
    order = await drain(queue)
    places = [place for place, id_ in enumerate(order, start=1) if id_.startswith("b")]
    assert len(places) == 50
    for k, place in enumerate(places, start=1):
        assert place <= 2 * k + 4
    assert [id_ for id_ in order if id_.startswith("a")] == ids(150, "a")  # each tenant's own order stays


@pytest.mark.asyncio
async def test_a_latecomer_is_served_second_behind_a_thousand(queue: Queue) -> None:
    for id_ in ids(1000, "a"):
        await enqueue(queue, id_, tenant="A")
    for id_ in tickets(await claim(queue, 500)):
        assert id_.startswith("a")
    placed = await enqueue(queue, "late", tenant="B")
    assert placed.position <= 1


@pytest.mark.asyncio
async def test_weights_share_the_slots(queue: Queue) -> None:
    for n in range(40):
        await enqueue(queue, f"heavy-{n:02d}", tenant="heavy", weight=3.0)
        await enqueue(queue, f"light-{n:02d}", tenant="light", weight=1.0)
    first = tickets(await claim(queue, 40))
    assert sum(id_.startswith("heavy") for id_ in first) == pytest.approx(30, abs=1)


@pytest.mark.asyncio
async def test_equal_tenants_are_served_in_order_of_arrival(queue: Queue) -> None:
    """Each is a tenant's first request, so all start at one virtual time; the ids would sort the other way round."""
    names = list(reversed(ids(50)))
    for id_ in names:
        await enqueue(queue, id_, tenant=id_)
    assert await drain(queue) == names


@pytest.mark.asyncio
async def test_newcomers_cannot_starve_an_unlucky_id(queue: Queue) -> None:
    await enqueue(queue, "zzz", tenant="unlucky")
    for number in range(20):
        await enqueue(queue, f"aaa-{number}", tenant=f"newcomer-{number}")
    assert tickets(await claim(queue)) == ["zzz"]


@pytest.mark.asyncio
async def test_an_idle_tenant_saves_up_nothing(queue: Queue) -> None:
    for id_ in ids(20, "a"):
        await enqueue(queue, id_, tenant="A")
    await claim(queue, 10)
    # B was away while A was served ten times: it now gets every second slot, not the next ten.
    for id_ in ids(10, "b"):
        await enqueue(queue, id_, tenant="B")
    next_six = tickets(await claim(queue, 6))
    assert sum(id_.startswith("b") for id_ in next_six) == 3


@pytest.mark.asyncio
async def test_a_tenant_may_be_called_like_a_field_of_ours(queue: Queue) -> None:
    tenants = {"star": "*", "hash": "#", "at": "@", "nobody": ""}
    for name, tenant in tenants.items():
        for number in range(3):
            await enqueue(queue, f"{name}-{number}", tenant=tenant)
    first_round = tickets(await claim(queue, 4))
    assert first_round == [f"{name}-0" for name in tenants]
