"""Commands that a gateway refuses at once: its own reading of the fleet says that they would do no good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleet import Jobs
from tests.fleet.job_helpers import submit
from tests.gateway.world import CONFIG, Reply, World, chat, config, until

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


async def sleep(world: World, model: str = "m") -> Reply:
    return await world.post({"kind": "sleep", "target": model}, path="/rewarm/v1/commands")


async def waiting(world: World, count: int) -> bool:
    return (await world.queue.waiting(["m"]))["m"].count == count


def refused(answer: Reply) -> str:
    """Why; a repetition of the same command cannot help by itself."""
    assert (answer.status, answer.code, answer.headers["x-should-retry"]) == (409, "command_refused", "false")
    message: str = answer.json["error"]["message"]
    return message


async def test_a_model_does_not_go_to_sleep_while_requests_wait(world: World) -> None:
    await world.loading("m")
    await world.known("m", "loading")
    assert (await sleep(world)).status == 202, "nobody waits: the load is cancelled"
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(world.post(chat())) for _ in range(2)]
        await until(lambda: waiting(world, 2), "both wait")
        assert "2 requests wait for it" in refused(await sleep(world, "alias"))
        assert await world.client.call("LLEN", world.client.keys.commands) == 1, "the leader does not hear of it"
        await world.ready("m")
    assert [task.result().status for task in held] == [200, 200]
    await world.known("m")
    assert (await sleep(world)).status == 202


async def test_a_model_does_not_go_to_sleep_while_a_job_waits(world: World) -> None:
    await submit(Jobs(world.client), "j")
    assert "1 job waits for it" in refused(await sleep(world))


async def test_a_model_that_is_to_have_replicas_always_does_not_go_to_sleep(make_world: Any) -> None:
    world: World = await make_world(config(CONFIG.replace("aliases: [alias]", "min_replicas: 1")))
    await world.gateway()
    await world.ready("m")
    await world.known("m")
    assert "min_replicas is 1" in refused(await sleep(world))
