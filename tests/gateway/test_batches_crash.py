"""A gateway may die between any two of its commands to Redis: no line of its batch runs twice, none is lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet import Batches, Files, FleetClient, Jobs, Registry
from fleet.batches import LEASE_MS
from gateway.jobs import JobDesk
from gateway.keys import Keyring
from gateway.openai.runner import BatchRunner
from gateway.view import View
from rewarm.config import JobsConfig
from rewarm.files import BATCH_ENDED, Batch, BatchSpec, StoredFile
from tests.gateway.batches_world import CHAT, jsonl, line, running
from tests.gateway.world import World

pytestmark = [pytest.mark.redis, pytest.mark.slow]


class Killed(BaseException):
    """As SIGKILL: nothing that the code does about exceptions helps."""


class Mortal:
    """The commands of one client, counted; at the ``at``-th the process dies, before it is sent or just after."""

    def __init__(self, client: FleetClient) -> None:
        self.count = 0
        self.at: int | None = None
        self.sent = False
        for owner, name in ((client, "call"), (client, "pipeline"), (client.scripts, "run")):
            setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, command: Any) -> Any:
        async def counted(*args: Any) -> Any:
            self.count += 1
            dies = self.count == self.at
            if dies and not self.sent:
                raise Killed
            answer = await command(*args)
            if dies:
                raise Killed
            return answer

        return counted


class Node:
    """What of a gateway carries batches out."""

    def __init__(self, client: FleetClient, view: View, name: str) -> None:
        self.client = client
        self.mortal = Mortal(client)
        self.files, self.batches = Files(client), Batches(client)
        self.jobs = Jobs(client)
        chains = SimpleNamespace(of_line=lambda *of: ())
        desk = cast(JobDesk, SimpleNamespace(config=JobsConfig(), jobs=self.jobs, chains=chains))
        self.runner = BatchRunner(self.batches, self.files, desk, view, Keyring(()), name, leaving=lambda: False)

    async def read(self, id_: str) -> Batch:
        batch = await self.batches.get(id_)
        assert batch is not None
        return batch

    async def run(self, id_: str) -> Batch:
        while (batch := await self.read(id_)).state not in BATCH_ENDED:
            await self.runner.tick()
            await asyncio.sleep(0.001)
        return batch

    async def text(self, file: str | None, tenant: str) -> bytes:
        stored = await self.files.get(file, tenant) if file else None
        return b"" if stored is None else b"".join([piece async for piece in self.files.read(stored)])


async def node(world: World, name: str) -> Node:
    client = await FleetClient.connect(world.url, world.fleet, check=False)
    world.stack.push_async_callback(client.close)
    view = View(Registry(client).snapshot, heartbeat_s=1)
    await view.refresh()
    return Node(client, view, name)


INPUT = jsonl(line("a", "a"), line("b", "fail b"), line("c", "c"), line("d", "d"))
OUTPUT = [b'"custom_id":"a"', b'"custom_id":"c"', b'"custom_id":"d"']


async def begin(setter: Node, name: str) -> str:
    file = StoredFile(id=f"file-{name}", tenant="t", filename="f", purpose="batch", bytes=0, created_ms=0, expires_ms=0)
    await setter.files.put(file, INPUT)
    now = await setter.client.time_ms()
    spec = BatchSpec(
        id=f"batch_{name}",
        tenant="t",
        endpoint=CHAT,
        input_file=file.id,
        completion_window="24h",
        created_ms=now,
        expires_ms=now + 86_400_000,
    )
    await setter.batches.create(spec)
    return spec.id


async def check(reader: Node, id_: str, ran: list[str]) -> None:
    batch = await reader.read(id_)
    assert batch.state == "completed"
    assert (batch.total, batch.completed, batch.failed) == (4, 3, 1)
    written = (await reader.text(batch.output_file, "t")).splitlines()
    assert len(written) == 3
    assert all(mark in each for mark, each in zip(OUTPUT, written, strict=True)), written
    errors = (await reader.text(batch.error_file, "t")).splitlines()
    assert len(errors) == 1 and b'"custom_id":"b"' in errors[0]
    assert sorted(ran) == ["a", "c", "d", "fail b"], "each line ran once"


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", [False, True], ids=["before the command", "after the command"])
async def test_a_gateway_that_dies_at_any_command_is_taken_over_without_doubles(make_world: Any, sent: bool) -> None:
    world: World = await make_world()
    heir = await node(world, "heir")
    deaths = 0
    while True:
        victim = await node(world, f"victim-{deaths}")
        id_ = await begin(heir, f"{deaths}")
        victim.mortal.count, victim.mortal.at, victim.mortal.sent = 0, deaths + 1, sent
        victim.client.scripts.clock_offset_ms = heir.client.scripts.clock_offset_ms
        ran: list[str] = []
        died = False
        async with running(world, ran=ran):
            try:
                async with asyncio.timeout(10):
                    await victim.run(id_)
            except Killed:
                died = True
                heir.client.scripts.clock_offset_ms += LEASE_MS + 1000  # the lease of the dead is over
                async with asyncio.timeout(10):
                    await heir.run(id_)
        await check(heir, id_, ran)
        if not died:
            break
        deaths += 1
    assert deaths > 25, "every command was tried, to the last one of an undisturbed batch"


@pytest.mark.asyncio
async def test_two_gateways_at_once_do_the_work_of_one(make_world: Any) -> None:
    world: World = await make_world()
    nodes = [await node(world, f"node-{n}") for n in range(2)]
    id_ = await begin(nodes[0], "both")
    ran: list[str] = []
    async with running(world, ran=ran), asyncio.timeout(20):
        await asyncio.gather(*(each.run(id_) for each in nodes))
    await check(nodes[0], id_, ran)


@pytest.mark.asyncio
async def test_a_gateway_that_was_stopped_for_a_minute_hands_in_nothing_more(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking for a line's job and handing it in, where no script of the batch fences what it does."""
    world: World = await make_world()
    stalled, heir = await node(world, "stalled"), await node(world, "heir")
    id_ = await begin(heir, "stalled")
    await stalled.runner.tick()  # validated
    work, jobs = stalled.runner._work[id_], stalled.jobs
    looked = jobs.get_many
    ran: list[str] = []

    async def stopped(ids: Any, **how: Any) -> Any:
        found = await looked(ids, **how)
        assert found == [None] * 4
        heir.client.scripts.clock_offset_ms = LEASE_MS + 1000
        async with running(world, ran=ran):
            await heir.run(id_)
        work.lease._since -= 60  # its own clock has gone on, too
        return found

    monkeypatch.setattr(jobs, "get_many", stopped)
    async with asyncio.timeout(20):
        await stalled.runner.tick()
    assert id_ not in stalled.runner._work
    async with running(world, ran=ran):
        assert (await world.queue.waiting(["m"]))["m"].jobs == 0
    await check(heir, id_, ran)
