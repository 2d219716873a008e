"""The checker that every test of the fleet ends with can fail."""

from __future__ import annotations

import asyncio
import sys

import pytest

from fleet import FleetClient, Keys, Queue
from fleet.keys import Life
from fleet.leaks import find_leaks
from tests.fleet.helpers import claim, enqueue, forget_fleet

pytestmark = pytest.mark.redis


@pytest.mark.asyncio
async def test_a_key_without_an_end_is_found(fleet_client: FleetClient) -> None:
    name = f"{fleet_client.keys.prefix}forgotten"
    await fleet_client.call("SET", name, "x")
    (leak,) = await find_leaks(fleet_client)
    assert leak.startswith(name)
    await fleet_client.call("PEXPIRE", name, 1000)
    assert await find_leaks(fleet_client) == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "damage",
    [
        lambda k: ("DEL", k.ticket("waits")),
        lambda k: ("DEL", k.ticket("granted")),
        lambda k: ("ZREM", k.ready("m", 1), "waits"),
        lambda k: ("ZREM", k.since("m"), "waits"),
        lambda k: ("ZADD", k.since("m"), 1, "granted"),
        lambda k: ("ZREM", k.lease, "granted"),
        lambda k: ("ZADD", k.lease, 1, "waits"),
        lambda k: ("ZADD", k.ready("m", 0), 1, "waits"),
        lambda k: ("SREM", k.held("gw-1"), "waits"),
        lambda k: ("SADD", k.held("gw-2"), "waits"),
        lambda k: ("HSET", k.virtual_time("m", 2), "*", 1),
    ],
)
async def test_a_ticket_in_two_places_or_in_none_is_found(fleet_client: FleetClient, damage: object) -> None:
    queue = Queue(fleet_client)
    await enqueue(queue, "granted", band=0)
    await enqueue(queue, "waits")
    await claim(queue)
    assert await find_leaks(fleet_client) == []
    await fleet_client.call(*damage(fleet_client.keys))  # type: ignore[operator]
    assert await find_leaks(fleet_client) != []
    await forget_fleet(fleet_client)


@pytest.mark.asyncio
async def test_the_command_says_what_leaks(fleet_client: FleetClient) -> None:
    async def check() -> tuple[int | None, str]:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fleet.leaks", fleet_client.url, fleet_client.keys.fleet),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await program.communicate()
        return program.returncode, out.decode()

    assert await check() == (0, "")
    name = f"{fleet_client.keys.prefix}forgotten"
    await fleet_client.call("SET", name, "x")
    status, out = await check()
    assert status == 1
    assert name in out
    await fleet_client.call("DEL", name)


def test_every_key_has_a_known_life() -> None:
    keys = Keys("f")
    live = [keys.ready("a/b:c", 1), keys.virtual_time("m", 0), keys.since("m"), keys.lease, keys.ticket("t")]
    live += [keys.held("g")]
    forever = [keys.bell, keys.generation, keys.pulse, keys.demand, keys.gateways, keys.workers, keys.leader]
    forever += [keys.catalogue, keys.want("w"), keys.wanted, keys.status]
    ttl = [keys.claim("c"), keys.again("d"), keys.grants("g"), keys.worker("w"), keys.load("r"), keys.history("w")]
    ttl += [keys.commands, keys.receipt("r")]
    live += [keys.file_accounts, keys.file_ends, keys.batches_at_work]
    ttl += [keys.file("f"), keys.file_data("f"), keys.files("A"), keys.batch("b"), keys.batches("A")]
    assert {keys.life(name) for name in live} == {Life.LIVE}
    assert {keys.life(name) for name in forever} == {Life.FOREVER}
    assert {keys.life(name) for name in ttl} == {Life.TTL}
    assert all(name.startswith("{rw:f}:") for name in (*live, *forever, *ttl))  # one tag: one slot of a cluster
    assert len({*live, *forever, *ttl}) == len(live) + len(forever) + len(ttl)
