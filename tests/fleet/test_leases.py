"""What happens to a grant that nobody redeems, and to the tickets of a gateway that died."""

from __future__ import annotations

import pytest

from fleet import FleetClient, Queue, Reaped
from fleet._reap import places, put_back
from tests.fleet.helpers import advance, claim, enqueue, ids, ticket, tickets

pytestmark = pytest.mark.redis


@pytest.fixture
def queue(fleet_client: FleetClient) -> Queue:
    return Queue(fleet_client)


@pytest.mark.asyncio
async def test_an_unredeemed_grant_returns_to_its_old_place(queue: Queue, fleet_client: FleetClient) -> None:
    for id_ in ("a", "b", "c"):
        await enqueue(queue, id_)
    assert tickets(await claim(queue)) == ["a"]
    assert await queue.reap() == Reaped(0, 0)  # the gateway may still redeem it
    assert await queue.positions("m", ["a", "b"]) == {"a": None, "b": 0}
    await advance(fleet_client, 3.1)
    assert await queue.reap() == Reaped(returned=1)
    assert await queue.positions("m", ["a", "b", "c"]) == {"a": 0, "b": 1, "c": 2}
    assert tickets(await claim(queue)) == ["a"]


@pytest.mark.asyncio
async def test_a_reaper_that_looked_at_another_lease_changes_nothing(queue: Queue, fleet_client: FleetClient) -> None:
    """Between its look and its script the ticket may have been returned and granted again."""
    await enqueue(queue, "a")
    await claim(queue)
    seen = list((await places(fleet_client, ["a"])).values())
    assert await put_back(fleet_client, seen) == (0, 0)
    await advance(fleet_client, 3.1)
    assert await put_back(fleet_client, seen) == (1, 0)
    assert await put_back(fleet_client, seen) == (0, 0)


@pytest.mark.asyncio
async def test_a_returned_ticket_is_the_head_of_a_band_that_went_idle_meanwhile(
    queue: Queue, fleet_client: FleetClient
) -> None:
    for id_ in ids(20, "old"):
        await enqueue(queue, id_)
    claimed = await claim(queue, 20)
    for grant in claimed.grants[:-1]:
        await queue.redeem(grant.ticket, grant.grant)
    # All were claimed, so the band's virtual time has started anew, and the last one's old score would be far behind.
    await enqueue(queue, "new")
    await advance(fleet_client, 3.1)
    await queue.reap()
    assert await queue.positions("m", ["old0019", "new"]) == {"old0019": 0, "new": 1}
    # Nor does its old start drag the virtual time of the new epoch along: a newcomer is not put behind a backlog.
    for id_ in ids(10, "backlog"):
        await enqueue(queue, id_)
    assert tickets(await claim(queue)) == ["old0019"]
    assert (await enqueue(queue, "newcomer", tenant="B")).position <= 1


@pytest.mark.asyncio
async def test_a_late_redemption_deletes_the_ticket_all_the_same(queue: Queue, fleet_client: FleetClient) -> None:
    await enqueue(queue, "a")
    first = (await claim(queue)).grants[0]
    await advance(fleet_client, 3.1)
    await queue.reap()
    # The gate took the request just before the reservation ran out: the connection serves it, nobody else may.
    assert not await queue.redeem("a", first.grant, gateway="gw-1")
    assert tickets(await claim(queue)) == []


@pytest.mark.asyncio
async def test_a_late_redemption_takes_back_a_second_grant(queue: Queue, fleet_client: FleetClient) -> None:
    await enqueue(queue, "a")
    first = (await claim(queue)).grants[0]
    await advance(fleet_client, 3.1)
    await queue.reap()
    second = (await claim(queue)).grants[0]
    assert not await queue.redeem("a", first.grant, gateway="gw-1")
    assert not await queue.redeem("a", second.grant, gateway="gw-1")


@pytest.mark.asyncio
async def test_another_gateway_cannot_redeem(queue: Queue) -> None:
    await enqueue(queue, "a")
    grant = (await claim(queue)).grants[0].grant
    assert not await queue.redeem("a", grant, gateway="gw-2")
    assert await queue.redeem("a", grant, gateway="gw-1")


@pytest.mark.asyncio
async def test_a_declined_grant_returns_at_once(queue: Queue) -> None:
    for id_ in ("a", "b"):
        await enqueue(queue, id_)
    grant = (await claim(queue)).grants[0].grant
    assert not await queue.decline("a", "grant-of-somebody-else")
    assert await queue.decline("a", grant)
    assert not await queue.decline("a", grant)
    assert await queue.positions("m", ["a", "b"]) == {"a": 0, "b": 1}


@pytest.mark.asyncio
async def test_a_claim_passes_over_the_tickets_of_a_dead_gateway(queue: Queue, fleet_client: FleetClient) -> None:
    for id_ in ids(60, "dead"):  # more than a claim looks at in one go
        await enqueue(queue, id_, gateway="gw-dead")
    await enqueue(queue, "alive", gateway="gw-1")
    await advance(fleet_client, 5)
    await queue.gateway_beat("gw-1")
    await advance(fleet_client, 2)  # the last sign of gw-dead is seven seconds old
    assert tickets(await claim(queue, 2)) == ["alive"]
    assert (await queue.waiting(["m"]))["m"].count == 0


@pytest.mark.asyncio
async def test_reap_drops_everything_of_a_dead_gateway(queue: Queue, fleet_client: FleetClient) -> None:
    keys = fleet_client.keys
    for id_ in ids(300, "dead"):
        await enqueue(queue, id_, gateway="gw-dead", band=0)
    await enqueue(queue, "alive", gateway="gw-1")
    await claim(queue, 2)
    await advance(fleet_client, 5)
    await queue.gateway_beat("gw-1")
    await advance(fleet_client, 2)
    dropped = 0
    for _ in range(10):  # a reap is bounded
        dropped += (await queue.reap(limit=100)).dropped
    assert dropped == 300
    assert await fleet_client.call("EXISTS", keys.lease, keys.held("gw-dead"), keys.grants("gw-dead")) == 0
    assert await fleet_client.call("ZSCORE", keys.gateways, "gw-dead") is None
    assert await queue.positions("m", ["alive"]) == {"alive": 0}


@pytest.mark.asyncio
async def test_a_gateway_that_leaves_is_forgotten_at_once(queue: Queue, fleet_client: FleetClient) -> None:
    await enqueue(queue, "waits")
    await enqueue(queue, "granted", band=0)
    await claim(queue)
    await queue.gateway_leave("gw-1")
    assert await fleet_client.call("EXISTS", fleet_client.keys.gateways, fleet_client.keys.lease) == 0
    assert tickets(await claim(queue, 5)) == []


@pytest.mark.asyncio
async def test_a_heartbeat_names_the_tickets_that_are_gone(queue: Queue) -> None:
    await enqueue(queue, "waits")
    await enqueue(queue, "granted", band=0)
    await claim(queue)
    held = [("m", "waits"), ("m", "granted"), ("m", "lost")]
    assert await queue.gateway_beat("gw-1", held=held) == ["lost"]


@pytest.mark.asyncio
async def test_a_heartbeat_removes_what_its_gateway_does_not_know(queue: Queue, fleet_client: FleetClient) -> None:
    """Its client left while Redis was away. A young one may be an enqueue whose answer is still on its way."""
    await enqueue(queue, "left")
    await enqueue(queue, "known")
    await enqueue(queue, "foreign", gateway="gw-2")
    await queue.gateway_beat("gw-1", held=[("m", "known")])
    assert await queue.positions("m", ["left"]) == {"left": 0}
    for _ in range(3):
        await advance(fleet_client, 4)
        await queue.gateway_beat("gw-1", held=[("m", "known")])
        await queue.gateway_beat("gw-2")
    assert await queue.positions("m", ["left", "known", "foreign"]) == {"left": None, "known": 0, "foreign": 1}


@pytest.mark.asyncio
async def test_nothing_expires_right_after_nobody_could_reach_redis(queue: Queue, fleet_client: FleetClient) -> None:
    for id_ in ("a", "b"):
        await enqueue(queue, id_)
    await claim(queue)
    # Redis was away for a minute: nobody gave a sign of life, and every deadline passed through no fault of its owner.
    fleet_client.scripts.clock_offset_ms += 60_000
    assert await queue.reap() == Reaped(0, 0)
    assert tickets(await claim(queue)) == ["b"]
    # Those that live have spoken by the end of the grace; the others are dead.
    await queue.gateway_beat("gw-2")
    await enqueue(queue, "of-the-living", gateway="gw-2")
    for _ in range(3):
        await advance(fleet_client, 2.5)
        await queue.gateway_beat("gw-2")
    assert (await queue.reap()).dropped == 2
    assert await queue.positions("m", ["of-the-living"]) == {"of-the-living": 0}


@pytest.mark.asyncio
async def test_a_granted_ticket_can_be_abandoned_too(queue: Queue) -> None:
    await enqueue(queue, "a", again="digest")
    await claim(queue)
    await queue.abandon(ticket("a", again="digest"))
    assert (await enqueue(queue, "a2", again="digest")).reattached
