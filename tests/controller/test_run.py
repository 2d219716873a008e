"""The loop on a real Redis: it leads, decides on what it reads there, and hands over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

import controller
from controller.places import Place, Seen
from fleet import Commands, FleetClient, Queue, Registry
from fleet.scripts import Args
from rewarm.errors import QueueUnavailable
from rewarm.messages import CatalogueEntry, Ticket, Want, WorkerBeat
from rewarm.states import ReplicaState
from tests.controller.fleetview import GIB, entry, ram

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


@asynccontextmanager
async def candidate(
    client: FleetClient, owner: str, *entries: CatalogueEntry, backend: controller.Backend | None = None
) -> AsyncIterator[controller.Reload]:
    reload = controller.Reload({e.model: e for e in entries})
    task = asyncio.create_task(controller.run(client, reload, owner, backend=backend))
    try:
        yield reload
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(15):
        while not await condition():  # noqa: ASYNC110 -- what another process writes to Redis sets no event here
            await asyncio.sleep(0.02)


async def beat(client: FleetClient) -> None:
    await Registry(client).beat(
        WorkerBeat(worker="w1", boot="boot-1", host="h", pid=1, devices=(ram(8 * GIB),)),
        ttl_ms=60_000,
    )


async def ask(client: FleetClient, ticket: str) -> None:
    queue = Queue(client)
    await queue.gateway_beat("g1", ttl_ms=60_000)
    await queue.enqueue(Ticket(id=ticket, model="m", tenant="t", gateway="g1", band=1), max_waiting=10)


async def wants(client: FleetClient) -> list[Want]:
    return await Registry(client).wants("w1")


async def test_demand_becomes_a_want(fleet_client: FleetClient) -> None:
    await beat(fleet_client)
    async with candidate(fleet_client, "a", entry("m")):
        await ask(fleet_client, "req-1")
        await until(lambda: _has(fleet_client, 1))
    (want,) = await wants(fleet_client)
    assert (want.model, want.worker, want.state) == ("m", "w1", ReplicaState.READY)
    assert (await Registry(fleet_client).snapshot()).leader is None, "it resigned when it was cancelled"


async def test_the_next_leader_goes_on_with_the_same_want_in_a_higher_term(fleet_client: FleetClient) -> None:
    await beat(fleet_client)
    async with candidate(fleet_client, "a", entry("m")):
        await ask(fleet_client, "req-1")
        await until(lambda: _has(fleet_client, 1))
    (before,) = await wants(fleet_client)
    async with candidate(fleet_client, "b", entry("m")):

        async def leads() -> bool:
            return (await Registry(fleet_client).snapshot()).leader == "b"

        await until(leads)
        await Queue(fleet_client).cancel("req-1")  # nobody waits: its load may be cancelled
        await Commands(fleet_client).send("sleep", "m")

        async def stopped() -> bool:
            return [w.state for w in await wants(fleet_client)] == [ReplicaState.STOPPED]

        await until(stopped)
    (after,) = await wants(fleet_client)
    assert after.replica == before.replica
    assert after.term > before.term


async def test_a_reload_reaches_the_catalogue(fleet_client: FleetClient) -> None:
    async with candidate(fleet_client, "a", entry("m")) as reload:

        async def models(*names: str) -> bool:
            return sorted((await Registry(fleet_client).snapshot()).catalogue) == sorted(names)

        await until(lambda: models("m"))
        reload.replace({"n": entry("n")})
        await until(lambda: models("n"))


@pytest.mark.parametrize("fails", [1, 2])
async def test_an_election_that_redis_interrupts_is_completed(
    fleet_client: FleetClient, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """Whichever of its first writes fails: in the end the catalogue is published and the backend led."""
    await beat(fleet_client)
    async with candidate(fleet_client, "a", entry("m")):
        await ask(fleet_client, "req-1")
        await until(lambda: _has(fleet_client, 1))
    run, refused = fleet_client.scripts.run, 0

    async def run_or_refuse(name: str, keys: Sequence[str], args: Args) -> object:
        nonlocal refused
        if name == "publish" and refused < fails:
            refused += 1
            raise QueueUnavailable("connection reset")
        return await run(name, keys, args)

    monkeypatch.setattr(fleet_client.scripts, "run", run_or_refuse)
    cluster = Cluster()
    async with candidate(fleet_client, "b", entry("m"), entry("n"), backend=cluster):
        await until(lambda: _is(cluster.leading == 1))
        assert refused == fails
        assert sorted(await Registry(fleet_client).catalogue()) == ["m", "n"]


async def test_only_one_of_two_candidates_leads(fleet_client: FleetClient) -> None:
    await beat(fleet_client)
    async with candidate(fleet_client, "a", entry("m")), candidate(fleet_client, "b", entry("m")):
        await ask(fleet_client, "req-1")
        await until(lambda: _has(fleet_client, 1))
        await ask(fleet_client, "req-2")
        assert len(await wants(fleet_client)) == 1


async def _has(client: FleetClient, count: int) -> bool:
    return len(await wants(client)) == count


class Cluster:
    """One place; it only notes what it is told."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.needed: frozenset[str] = frozenset()
        self.leading = 0
        self.changed: Callable[[], None] = lambda: None

    def configure(self, entries: Mapping[str, CatalogueEntry]) -> None:
        self.places = {f"model-{model}-0": Place(f"model-{model}-0", model) for model in entries}

    def need(self, places: frozenset[str]) -> None:
        self.needed = places

    async def lead(self, changed: Callable[[], None], trusted: Callable[[], bool]) -> None:
        assert trusted()
        self.leading += 1
        self.changed = changed
        try:
            await asyncio.Event().wait()
        finally:
            self.leading -= 1


async def test_the_leaders_backend_is_told_what_is_needed_and_what_it_sees_is_published(
    fleet_client: FleetClient,
) -> None:
    cluster, idle = Cluster(), Cluster()
    registry = Registry(fleet_client)

    async def said() -> list[str]:
        view = (await registry.snapshot()).with_absent()
        return [p.message for _, r in view.replicas("m") if (p := r.progress) is not None]

    async with candidate(fleet_client, "a", entry("m"), backend=cluster):
        await until(lambda: _is(cluster.leading == 1))
        async with candidate(fleet_client, "b", entry("m"), backend=idle):
            await ask(fleet_client, "req-1")
            await until(lambda: _is(cluster.needed == {"model-m-0"}))
            cluster.places = {"model-m-0": Place("model-m-0", "m", Seen(message="its pod waits for a node"))}
            cluster.changed()

            async def told() -> bool:
                return await said() == ["its pod waits for a node"]

            await until(told)
            assert idle.leading == 0, "the other one does not lead"
    assert cluster.leading == 0


async def _is(value: bool) -> bool:
    return value
