"""What workers say of themselves, and the view that everybody decides on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fleet import FleetClient, Leader, LostLeadership, Publisher, Queue, Receipts, Registry
from rewarm.messages import (
    CatalogueEntry,
    DeviceReport,
    ModelPolicy,
    Progress,
    Receipt,
    ReplicaReport,
    Want,
    WorkerBeat,
)
from rewarm.states import ReplicaState, Tier
from tests.fleet.helpers import advance, enqueue, spec

pytestmark = pytest.mark.redis


def report(replica: str, state: ReplicaState, **fields: Any) -> ReplicaReport:
    return ReplicaReport(replica=replica, model="m", spec_hash="h", state=state, term=1, **fields)


def beat(worker: str = "w", *replicas: ReplicaReport) -> WorkerBeat:
    return WorkerBeat(
        worker=worker,
        boot="boot",
        host="host",
        pid=1,
        devices=(DeviceReport(id="ram", kind="ram", free_bytes=500),),
        replicas=replicas,
    )


@pytest.mark.asyncio
async def test_an_empty_fleet(fleet_client: FleetClient) -> None:
    view = await Registry(fleet_client).snapshot()
    assert (view.catalogue, view.workers, view.wants, view.leader, view.term) == ({}, {}, {}, None, 0)
    assert view.now_ms == pytest.approx(await fleet_client.time_ms(), abs=5000)


@pytest.mark.asyncio
async def test_a_worker_lives_from_heartbeat_to_heartbeat(fleet_client: FleetClient) -> None:
    registry = Registry(fleet_client)
    await registry.beat(beat(), ttl_ms=3000)
    view = await registry.snapshot()
    assert view.workers["w"].devices[0].free_bytes == 500
    assert view.workers["w"].at_ms == pytest.approx(view.now_ms, abs=5000)  # by Redis's clock, not the worker's
    await advance(fleet_client, 3.1)
    assert (await registry.snapshot()).workers == {}
    await registry.beat(beat(), ttl_ms=3000)
    assert list((await registry.snapshot()).workers) == ["w"]
    await registry.leave("w", "boot")
    assert (await registry.snapshot()).workers == {}


@pytest.mark.asyncio
async def test_a_dead_worker_is_forgotten_after_a_minute(fleet_client: FleetClient) -> None:
    registry, keys = Registry(fleet_client), fleet_client.keys
    await registry.beat(beat("dead"), ttl_ms=3000)
    await registry.beat(beat("alive"), ttl_ms=120_000)
    await advance(fleet_client, 30)
    await Queue(fleet_client).reap()
    assert await fleet_client.call("EXISTS", keys.worker("dead")) == 1
    await advance(fleet_client, 40)
    await Queue(fleet_client).reap()
    assert await fleet_client.call("EXISTS", keys.worker("dead")) == 0
    assert await fleet_client.call("ZRANGE", keys.workers, 0, -1) == [b"alive"]


@pytest.mark.asyncio
async def test_the_wants_of_a_dead_worker_stay_in_view_until_the_leader_removes_them(
    fleet_client: FleetClient,
) -> None:
    leader = Leader(fleet_client, "one")
    term = await leader.campaign()
    assert term is not None
    publisher, registry = Publisher(fleet_client, leader), Registry(fleet_client)
    await registry.beat(beat("w"), ttl_ms=3000)
    wanted = Want(replica="r", worker="w", model="m", spec=spec(), spec_hash="h", state=ReplicaState.READY, term=term)
    await publisher.want([wanted])
    await registry.leave("w", "boot")
    view = await registry.snapshot()
    assert (view.workers, view.wants) == ({}, {"w": {"r": wanted}})
    await publisher.unwant("w", "r")
    assert (await registry.snapshot()).wants == {}


@pytest.mark.asyncio
async def test_which_run_of_a_worker_takes_nothing_new_outlives_its_leader(fleet_client: FleetClient) -> None:
    leader = Leader(fleet_client, "one")
    await leader.campaign()
    publisher, registry = Publisher(fleet_client, leader), Registry(fleet_client)
    await publisher.cordon("w1", "boot-1")
    await publisher.cordon("w2", "boot-9")
    await leader.resign()
    assert (await registry.snapshot()).cordons == {"w1": "boot-1", "w2": "boot-9"}
    with pytest.raises(LostLeadership):
        await publisher.uncordon("w1")
    await leader.campaign()
    await publisher.uncordon("w1")
    await publisher.uncordon("w2")
    assert (await registry.snapshot()).cordons == {}
    assert not await fleet_client.call("EXISTS", fleet_client.keys.cordons)


async def _want_of(client: FleetClient, boot: str) -> Publisher:
    """A want of worker ``w``, in its run ``boot``."""
    leader = Leader(client, "one")
    term = await leader.campaign()
    assert term is not None
    publisher = Publisher(client, leader)
    wanted = Want(replica="r", worker="w", model="m", spec=spec(), spec_hash="h", state=ReplicaState.READY, term=term)
    await publisher.want([msgspec.structs.replace(wanted, boot=boot)])
    return publisher


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["killed", "silent", "left"])
async def test_the_last_word_of_a_run_that_is_over_stays_in_view_with_what_was_wanted_of_it(
    fleet_client: FleetClient, end: str
) -> None:
    """Of whoever leads next: was it ready, did it go on purpose?"""
    registry = Registry(fleet_client)
    first = msgspec.structs.replace(beat("w", report("r", ReplicaState.READY)), boot="one")
    publisher = await _want_of(fleet_client, "one")
    await registry.beat(first, ttl_ms=3000)
    assert (await registry.snapshot()).former == {}, "it lives"
    last = msgspec.structs.replace(first, draining=True)
    await registry.beat(last, ttl_ms=3000)
    if end == "silent":
        await advance(fleet_client, 4)
    if end == "left":
        await registry.leave("w", "one")
    if end != "killed":
        view = await registry.snapshot()
        assert (view.workers, view.former) == ({}, {"w": last})
    for _ in range(3):
        await registry.beat(msgspec.structs.replace(first, boot="two", replicas=()), ttl_ms=3000)
        view = await registry.snapshot()
        assert (view.workers["w"].boot, view.former) == ("two", {"w": last})
    await publisher.unwant("w", "r")
    assert (await registry.snapshot()).former == {}


@pytest.mark.asyncio
async def test_of_two_runs_of_one_name_the_later_one_is_the_worker(fleet_client: FleetClient) -> None:
    """A pod that is replaced drains for minutes, under the same name as the next one."""
    registry = Registry(fleet_client)
    old = msgspec.structs.replace(beat(), boot="old", since_ms=1000)
    new = msgspec.structs.replace(beat(), boot="new", since_ms=2000)
    assert await registry.beat(old, ttl_ms=3000)
    assert await registry.beat(new, ttl_ms=3000)
    assert not await registry.beat(msgspec.structs.replace(old, draining=True), ttl_ms=3000)
    await registry.leave("w", "old")
    assert (await registry.snapshot()).workers["w"].boot == "new"
    await advance(fleet_client, 4)
    assert await registry.beat(old, ttl_ms=3000), "the later one is gone"


@pytest.mark.asyncio
async def test_what_the_leader_says_for_a_place_is_seen_until_its_worker_speaks(fleet_client: FleetClient) -> None:
    leader = Leader(fleet_client, "one")
    await leader.campaign()
    publisher, registry = Publisher(fleet_client, leader), Registry(fleet_client)
    said = msgspec.structs.replace(beat("w", report("m-1", ReplicaState.POD_PENDING)), boot="", absent=True)
    await publisher.absent({"w": said})
    view = await registry.snapshot()
    assert (view.workers, view.with_absent().workers) == ({}, {"w": said})
    assert view.with_absent().replicas("m")[0][1].state is ReplicaState.POD_PENDING
    await registry.beat(beat("w"), ttl_ms=3000)
    assert not (await registry.snapshot()).with_absent().workers["w"].absent
    leaving = msgspec.structs.replace(beat("w", report("m-0", ReplicaState.DRAINING)), draining=True)
    await registry.beat(leaving, ttl_ms=3000)
    assert (await registry.snapshot()).with_absent().workers["w"].absent, "the next pod is waited for"
    await publisher.absent({})
    view = await registry.snapshot()
    assert (view.absent, view.with_absent().workers["w"].draining) == ({}, True)


@pytest.mark.asyncio
async def test_the_view_of_a_model(fleet_client: FleetClient) -> None:
    leader = Leader(fleet_client, "one")
    await leader.campaign()
    policy = ModelPolicy()
    entry = CatalogueEntry(model="m", aliases=("gpt-4",), spec=spec(), spec_hash="h", policy=policy)
    await Publisher(fleet_client, leader).catalogue([entry])
    registry = Registry(fleet_client)
    ready = report("m-1", ReplicaState.READY, endpoint="unix:/s")
    await registry.beat(beat("w1", ready), ttl_ms=3000)
    await registry.beat(beat("w2", report("m-2", ReplicaState.RESTORING)), ttl_ms=3000)
    await enqueue(Queue(fleet_client), "t", band=2)

    view = await registry.snapshot()

    assert view.resolve("m") == view.resolve("gpt-4") == entry
    assert view.resolve("nothing") is None
    assert [(b.worker, r.replica) for b, r in view.replicas("m")] == [("w1", "m-1"), ("w2", "m-2")]
    assert view.waiting["m"].count == 1
    assert view.waiting["m"].highest_band == 2
    assert view.demand_ms["m"] == pytest.approx(view.now_ms, abs=5000)
    assert view.gateways == 1


@pytest.mark.asyncio
async def test_progress_between_heartbeats_is_the_later_one(fleet_client: FleetClient) -> None:
    registry = Registry(fleet_client)
    old = Progress(model="m", replica="r", fraction=0.2, seq=4)
    await registry.beat(beat("w", report("r", ReplicaState.RESTORING, progress=old)), ttl_ms=3000)
    assert (await registry.snapshot()).progress["r"] == old
    new = Progress(model="m", replica="r", fraction=0.6, seq=9)
    await registry.load_progress(new)
    assert (await registry.snapshot()).progress["r"] == new
    # A new attempt starts from zero, and beats the old one's last word.
    retry = Progress(model="m", replica="r", fraction=0.1, attempt=2, seq=0)
    await registry.beat(beat("w", report("r", ReplicaState.RESTORING, progress=retry)), ttl_ms=3000)
    assert (await registry.snapshot()).progress["r"] == retry
    # Nobody cares for it any more once the replica is ready.
    await registry.beat(beat("w", report("r", ReplicaState.READY)), ttl_ms=3000)
    assert (await registry.snapshot()).progress == {}


@pytest.mark.asyncio
async def test_progress_names_its_replica(fleet_client: FleetClient) -> None:
    with pytest.raises(ValueError, match="replica"):
        await Registry(fleet_client).load_progress(Progress(model="m"))


@pytest.mark.asyncio
async def test_a_heartbeat_of_another_version_blinds_nobody(
    fleet_client: FleetClient, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(fleet_client)
    await registry.beat(beat("new"), ttl_ms=3000)
    await registry.beat(beat("good"), ttl_ms=3000)
    await fleet_client.call("HSET", fleet_client.keys.worker("new"), "beat", b"\x81\xa1v\x63")
    for _ in range(3):
        assert list((await registry.snapshot()).workers) == ["good"]
    assert len([r for r in caplog.records if "unreadable" in r.message]) == 1


@pytest.mark.asyncio
async def test_history_keeps_the_last_eight_durations_of_a_phase(fleet_client: FleetClient) -> None:
    registry = Registry(fleet_client)
    for seconds in range(10):
        await registry.record_history("w", "a/b:c", Tier.COLD, {"restoring": seconds + 0.5})
    await registry.record_history("w", "a/b:c", Tier.COLD, {"warming": 3, "warming@50": 1})
    assert await registry.history("w") == {
        ("a/b:c", "cold", "restoring"): tuple(n + 0.5 for n in range(2, 10)),
        ("a/b:c", "cold", "warming"): (3.0,),
        ("a/b:c", "cold", "warming@50"): (1.0,),
    }
    assert await registry.history("another machine") == {}


@pytest.mark.asyncio
async def test_receipts_can_be_read_for_an_hour(fleet_client: FleetClient) -> None:
    receipts = Receipts(fleet_client)

    def receipt(state: str) -> Receipt:
        return Receipt(
            id="req-1",
            tenant="A",
            model="gpt-4",
            served_model="m",
            path="/v1/chat/completions",
            stream=True,
            state=state,
            start="cold",
            created_ms=1,
        )

    await receipts.put_many([receipt("waiting"), receipt("completed")])
    await receipts.put_many([])
    assert await receipts.get("req-1") == receipt("completed")
    assert await receipts.get("req-2") is None
    assert 3500 < await fleet_client.call("TTL", fleet_client.keys.receipt("req-1")) <= 3600
