"""The queue as a gateway and a worker use it."""

from __future__ import annotations

import pytest

from fleet import FleetClient, Leader, LostLeadership, Queue
from rewarm.errors import QueueFull
from rewarm.messages import Failure, Grant, TicketFailed
from rewarm.states import FailureReason, ReplicaState
from tests.fleet.helpers import claim, enqueue, events, ids, ticket, tickets

pytestmark = pytest.mark.redis


@pytest.fixture
def queue(fleet_client: FleetClient) -> Queue:
    return Queue(fleet_client)


@pytest.mark.asyncio
async def test_from_ticket_to_grant_to_redemption(queue: Queue, fleet_client: FleetClient) -> None:
    # A gateway holds a request and asks for a slot.
    placed = await enqueue(queue, "req-1")
    assert (placed.position, placed.reattached) == (0, False)
    waiting = (await queue.waiting(["m"]))["m"]
    assert (waiting.count, waiting.highest_band) == (1, 1)
    assert waiting.oldest_ms == pytest.approx(await fleet_client.time_ms(), abs=5000)

    # A worker has reserved a slot at a gate and claims the next ticket.
    claimed = await queue.claim("m", "worker", "replica", "unix:/gate.sock", ["grant-1"], request_id="claim-1")
    assert (claimed.waiting, claimed.highest_waiting_band) == (0, None)

    # The grant is on the gateway's stream.
    (grant,) = await events(fleet_client)
    assert isinstance(grant, Grant)
    assert claimed.grants == (grant,)
    assert (grant.ticket, grant.grant, grant.replica) == ("req-1", "grant-1", "replica")
    assert (grant.model, grant.endpoint) == ("m", "unix:/gate.sock")
    assert 0 < grant.expires_ms - await fleet_client.time_ms() <= 2000

    # The gateway redeems it at the gate and deletes the ticket. From now on the connection is the lease.
    assert await queue.redeem("req-1", "grant-1", gateway="gw-1")
    assert await queue.positions("m", ["req-1"]) == {"req-1": None}
    assert tickets(await claim(queue)) == []


@pytest.mark.asyncio
async def test_bands_are_strict_and_positions_count_over_all_of_them(queue: Queue) -> None:
    await enqueue(queue, "low", band=2)
    await enqueue(queue, "normal", band=1)
    placed = await enqueue(queue, "high", band=0)
    assert placed.position == 0
    assert await queue.positions("m", ["low", "normal", "high"]) == {"low": 2, "normal": 1, "high": 0}
    first = await claim(queue)
    assert (tickets(first), first.highest_waiting_band) == (["high"], 1)
    rest = await claim(queue, 5)
    assert (tickets(rest), rest.highest_waiting_band) == (["normal", "low"], None)


@pytest.mark.asyncio
async def test_models_do_not_share_a_queue(queue: Queue) -> None:
    await enqueue(queue, "mine", model="m")
    await enqueue(queue, "other", model="m:ready:1")  # a name that looks like part of a key
    assert tickets(await claim(queue, 5, model="m:ready:1")) == ["other"]
    assert tickets(await claim(queue, 5)) == ["mine"]


@pytest.mark.asyncio
async def test_the_number_of_waiting_tickets_is_bounded(queue: Queue) -> None:
    for id_ in ids(3):
        await enqueue(queue, id_, max_waiting=3)
    with pytest.raises(QueueFull, match="3 requests wait"):
        await enqueue(queue, "one-more", max_waiting=3)
    assert await queue.positions("m", ["one-more"]) == {"one-more": None}
    # Another band of the same model is bounded together with it; a granted ticket no longer waits.
    with pytest.raises(QueueFull):
        await enqueue(queue, "one-more", max_waiting=3, band=0)
    await claim(queue)
    assert (await enqueue(queue, "one-more", max_waiting=3)).position == 2


@pytest.mark.asyncio
async def test_a_band_that_does_not_exist_is_refused(queue: Queue) -> None:
    with pytest.raises(ValueError, match="band 9"):
        await enqueue(queue, "t", band=9)


@pytest.mark.asyncio
async def test_cancel_removes_a_waiting_and_a_granted_ticket(queue: Queue) -> None:
    await enqueue(queue, "a")
    await enqueue(queue, "b")
    await claim(queue)
    assert await queue.cancel("a")
    assert await queue.cancel("b")
    assert not await queue.cancel("b")
    assert not await queue.cancel("never")
    assert tickets(await claim(queue, 5)) == []


@pytest.mark.asyncio
async def test_an_abandoned_ticket_keeps_its_place_for_the_retry(queue: Queue, fleet_client: FleetClient) -> None:
    for id_ in ("a", "b", "c"):
        await enqueue(queue, id_, again=f"digest-{id_}")
    await queue.abandon(ticket("b", again="digest-b"))
    assert await queue.positions("m", ["a", "b", "c"]) == {"a": 0, "b": None, "c": 1}
    assert 0 < await fleet_client.call("PTTL", fleet_client.keys.again("digest-b")) <= 10_000

    retry = await enqueue(queue, "b2", again="digest-b")
    assert (retry.position, retry.reattached) == (1, True)
    # The place is taken once: a second retry of the same body queues like anybody.
    second = await enqueue(queue, "b3", again="digest-b")
    assert (second.position, second.reattached) == (3, False)


@pytest.mark.asyncio
async def test_a_kept_place_is_not_paid_for_twice(queue: Queue) -> None:
    await enqueue(queue, "other", tenant="B")
    for id_ in ("a1", "a2"):
        await enqueue(queue, id_, again=id_)
    await queue.abandon(ticket("a2", again="a2"))
    await enqueue(queue, "a2-retry", again="a2")
    await enqueue(queue, "a3")
    # Tenant A has paid for three requests, so a3 starts at 2, before B's third.
    for id_ in ("b2", "b3"):
        await enqueue(queue, id_, tenant="B")
    assert tickets(await claim(queue, 10)) == ["other", "a1", "a2-retry", "b2", "a3", "b3"]


@pytest.mark.asyncio
async def test_a_kept_place_of_another_model_is_of_no_use(queue: Queue) -> None:
    await enqueue(queue, "a", again="digest")
    await queue.abandon(ticket("a", again="digest"))
    placed = await enqueue(queue, "b", model="other", again="digest")
    assert not placed.reattached


@pytest.mark.asyncio
async def test_a_place_kept_while_the_band_went_idle_is_the_head(queue: Queue) -> None:
    for id_ in ids(5):
        await enqueue(queue, id_)
    await enqueue(queue, "last", again="digest")
    await queue.abandon(ticket("last", again="digest"))
    await claim(queue, 10)  # the band is empty now: its virtual time starts anew
    await enqueue(queue, "newcomer")
    retry = await enqueue(queue, "retry", again="digest")
    assert (retry.position, retry.reattached) == (0, True)


@pytest.mark.asyncio
async def test_failing_a_model_tells_every_gateway_why(queue: Queue, fleet_client: FleetClient) -> None:
    leader = Leader(fleet_client, "controller-1")
    term = await leader.campaign()
    assert term is not None
    await enqueue(queue, "granted")
    await claim(queue)
    for number, id_ in enumerate(ids(450)):
        await enqueue(queue, id_, gateway=f"gw-{number % 2 + 1}", band=number % 3)
    await enqueue(queue, "elsewhere", model="healthy")
    failure = Failure(reason=FailureReason.OUT_OF_MEMORY, message="no room", phase=ReplicaState.RESTORING)

    told = await queue.fail_all("m", "model_load_failed", "it did not load", failure, leader.owner, term)

    assert told == 450
    first = [event for event in await events(fleet_client, "gw-1") if isinstance(event, TicketFailed)]
    second = [event for event in await events(fleet_client, "gw-2") if isinstance(event, TicketFailed)]
    assert {event.ticket for event in (*first, *second)} == set(ids(450))
    assert {(event.code, event.message, event.failure) for event in first} == {
        ("model_load_failed", "it did not load", failure)
    }
    assert (await queue.waiting(["m", "healthy"]))["healthy"].count == 1
    assert await queue.redeem("granted", (await events(fleet_client))[0].grant)  # type: ignore[union-attr]


@pytest.mark.asyncio
async def test_only_the_leader_in_its_term_fails_a_model(queue: Queue, fleet_client: FleetClient) -> None:
    leader = Leader(fleet_client, "controller-1")
    term = await leader.campaign()
    assert term is not None
    await enqueue(queue, "a")
    for owner, claimed_term in (("controller-1", term - 1), ("controller-2", term)):
        with pytest.raises(LostLeadership):
            await queue.fail_all("m", "model_load_failed", "", None, owner, claimed_term)
        with pytest.raises(LostLeadership):  # also where there is nothing to fail
            await queue.fail_all("idle", "model_load_failed", "", None, owner, claimed_term)
    assert await queue.positions("m", ["a"]) == {"a": 0}
