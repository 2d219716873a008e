"""Requests to adapters: named as asked, held and served with their base, refused only where they are broken."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import pytest_asyncio

from rewarm.config import catalogue
from rewarm.states import ReplicaState
from tests.gateway.jobs_world import Hand, submitted
from tests.gateway.test_fallback import named_model
from tests.gateway.world import Gate, World, chat, config, until

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

MODELS = """
gateway:
  listen: 127.0.0.1:0
  holding: {stream_status_after: 300ms, comment_every: 1s, plain_status_after: 600ms, pad_every: 300ms}
models:
  base: {engine: vllm, source: /m/base, slots: 2}
  tuned: {adapter_of: base, source: /m/tuned, aliases: [latest]}
  polite: {adapter_of: base, source: /m/polite, fallback: [base]}
"""
SERVED = {"tuned": "", "polite": ""}


@pytest_asyncio.fixture
async def fleet(make_world: Callable[..., Any]) -> World:
    return await started(make_world)


async def started(make_world: Callable[..., Any], text: str = MODELS) -> World:
    world: World = await make_world(config(text))
    await world.gateway()
    await world.known("tuned", "cold")
    return world


async def ready(world: World, name: str = "1", **adapters: str) -> Gate:
    gate = await world.ready("base", name=name, adapters=SERVED | adapters)
    gate.answer = named_model
    return gate


async def waiting(world: World, count: int) -> None:
    async def enough() -> bool:
        return (await world.queue.waiting(["base"]))["base"].count == count

    await until(enough, f"{count} wait for the base")


def asked(gate: Gate) -> list[str]:
    return [json.loads(body)["model"] for _, body in gate.requests]


async def test_one_replica_answers_for_the_base_and_all_its_adapters(fleet: World) -> None:
    gate = await ready(fleet)
    await fleet.known("tuned")
    answers = [await fleet.post(chat(name)) for name in ("base", "tuned", "polite")]
    assert [answer.json["model"] for answer in answers] == ["base", "tuned", "polite"]
    assert [answer.headers["X-Rewarm-Model"] for answer in answers] == ["base", "tuned", "polite"]
    assert asked(gate) == ["base", "tuned", "polite"]


async def test_an_alias_reaches_the_engine_as_the_adapter_s_name(fleet: World) -> None:
    gate = await ready(fleet)
    await fleet.known("tuned")
    answer = await fleet.post(chat("latest", temperature=0.25))
    assert answer.json["model"] == answer.headers["X-Rewarm-Model"] == "tuned"
    assert json.loads(gate.requests[0][1]) == chat("tuned", temperature=0.25)
    receipt = (await fleet.get(f"/v1/requests/{answer.headers['X-Request-Id']}")).json
    assert (receipt["model"], receipt["served_model"]) == ("latest", "tuned")


async def test_it_is_held_and_woken_as_its_base_and_shares_its_slots(fleet: World) -> None:
    async with asyncio.TaskGroup() as group:
        names = ("tuned", "base", "polite", "tuned", "base")
        held = [group.create_task(fleet.post(chat(name))) for name in names]
        await waiting(fleet, 5)
        gate = await ready(fleet)
    assert [one.result().json["model"] for one in held] == list(names)
    assert {one.result().headers["X-Rewarm-Start"] for one in held} == {"cold"}
    assert gate.peak <= 2


async def test_it_is_listed_with_the_state_and_progress_of_its_base(fleet: World) -> None:
    await fleet.loading("base", phase=ReplicaState.RESTORING, fraction=0.4, eta_s=5.0)
    await fleet.known("tuned", "loading")
    listed = {one["id"]: one for one in (await fleet.get("/v1/models")).json["data"]}
    assert {"base", "tuned", "latest", "polite"} <= listed.keys()
    assert (listed["tuned"]["parent"], listed["base"]["parent"]) == ("base", None)
    told = listed["tuned"]["rewarm"]
    assert (told["state"], told["fraction"], told["adapter_of"]) == ("loading", 0.4, "base")


async def test_a_base_that_cannot_be_loaded_fails_its_adapters(fleet: World) -> None:
    await fleet.failed("base")
    await fleet.known("tuned", "failed")
    answer = await fleet.post(chat("tuned"))
    assert (answer.status, answer.code) == (500, "model_load_failed")


async def test_a_broken_adapter_fails_alone(fleet: World) -> None:
    gate = await ready(fleet, tuned="adapter_config.json: not JSON")
    await fleet.known("tuned", "failed")
    answer = await fleet.post(chat("tuned"))
    assert (answer.status, answer.code) == (500, "adapter_load_failed")
    assert "adapter_config.json: not JSON" in answer.json["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert [(await fleet.post(chat(name))).status for name in ("base", "polite")] == [200, 200]
    told = (await fleet.get("/v1/models/tuned")).json["rewarm"]
    assert told["failure"]["reason"] == "adapter_load_failed"
    assert asked(gate) == ["base", "polite"]


async def test_who_waited_for_one_that_turns_out_broken_is_told_and_takes_no_slot(fleet: World) -> None:
    async with asyncio.TaskGroup() as group:
        held = group.create_task(fleet.post(chat("tuned")))
        await waiting(fleet, 1)
        gate = await ready(fleet, tuned="it is damaged")
    assert held.result().code == "adapter_load_failed"
    assert gate.requests == []
    await waiting(fleet, 0)


async def test_its_base_answers_instead_where_it_is_the_fallback(fleet: World) -> None:
    await ready(fleet, polite="it is damaged")
    await fleet.known("polite", "failed")
    answer = await fleet.post(chat("polite"))
    assert (answer.status, answer.json["model"]) == (200, "base")
    assert answer.headers["X-Rewarm-Fallback"] == "polite; reason=adapter_load_failed"


async def test_a_replica_from_before_it_was_configured_is_not_asked(fleet: World) -> None:
    fleet.claims = False
    old = await fleet.ready("base", adapters={"polite": ""})
    await fleet.known("polite")
    async with asyncio.TaskGroup() as group:
        held = group.create_task(fleet.post(chat("tuned")))
        await until(lambda: len(fleet.gateways[0].calls) == 1, "it is held")
        assert (await fleet.post(chat("base"))).status == 200, "the old one serves on"
        await until(lambda: fleet.gateways[0].calls and next(iter(fleet.gateways[0].calls)).held_at, "it waits")
        await waiting(fleet, 0)  # nothing that the old one would be granted, again and again
        fleet.claims = True
        new = await ready(fleet, "2")
    assert held.result().json["model"] == "tuned"
    assert asked(new) == ["tuned"] and asked(old) == ["base"]


async def test_a_grant_of_such_a_replica_is_not_taken(fleet: World) -> None:
    """It was started before, and became ready after the request had begun to wait."""
    async with asyncio.TaskGroup() as group:
        held = group.create_task(fleet.post(chat("tuned")))
        await waiting(fleet, 1)
        old = await fleet.ready("base", adapters={"polite": ""})
        await waiting(fleet, 0)
        await ready(fleet, "2")
    assert held.result().json["model"] == "tuned"
    assert old.requests == []


async def test_one_that_is_removed_while_it_waits_is_told(fleet: World) -> None:
    async with asyncio.TaskGroup() as group:
        held = group.create_task(fleet.post(chat("tuned")))
        await waiting(fleet, 1)
        left = catalogue(config(MODELS.replace("tuned:", "other:")))
        await fleet.leader.campaign()
        await fleet.publisher.catalogue(left)
        await until(lambda: fleet.gateways[0].view.entry("tuned") is None, "it is gone")
        await fleet.ready("base", adapters={"other": "", "polite": ""})
    assert held.result().code == "model_removed"


async def test_a_key_may_be_for_the_adapter_and_not_for_its_base(make_world: Callable[..., Any]) -> None:
    digest = hashlib.sha256(b"sk").hexdigest()
    fleet = await started(make_world, f'{MODELS}\nkeys: [{{name: t, sha256: "{digest}", models: [tuned]}}]')
    await ready(fleet)
    await fleet.known("tuned")
    key = {"Authorization": "Bearer sk"}
    assert (await fleet.post(chat("latest"), key)).status == 200
    refused = await fleet.post(chat("base"), key)
    assert (refused.status, refused.code) == (403, "model_not_allowed")
    listed = (await fleet.get("/v1/models", key)).json["data"]
    assert {one["id"] for one in listed} == {"tuned", "latest"}


@pytest.mark.parametrize(("kind", "status"), [("wake", 202), ("sleep", 400), ("drain", 400)])
async def test_a_command_for_an_adapter(fleet: World, kind: str, status: int) -> None:
    answer = await fleet.post({"kind": kind, "target": "latest"}, path="/rewarm/v1/commands")
    assert answer.status == status, answer.body
    if status == 202:
        assert answer.json["target"] == "base"
    else:
        assert "is an adapter of 'base'" in answer.json["error"]["message"]


async def test_a_job_waits_with_its_base_and_is_shown_as_the_adapter_s(fleet: World) -> None:
    hand = Hand(fleet)
    id_ = await submitted(fleet, model="latest")
    told = (await fleet.get(f"/v1/jobs/{id_}")).json
    assert (told["model"], told["served_model"], told["queue_position"], told["fallback"]) == (
        "latest",
        "tuned",
        0,
        None,
    )
    lease = await hand.take("base")
    assert (lease.spec.model, lease.spec.homes) == ("tuned", {"tuned": "base"})
    await hand.finish(lease)
    assert (await fleet.get(f"/v1/jobs/{id_}")).json["served_model"] == "tuned"
