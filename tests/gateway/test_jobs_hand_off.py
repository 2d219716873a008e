"""A held request whose client cannot wait any longer becomes a job: at its place, and without running twice."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fleet import Submitted
from rewarm.ids import grant_id
from tests.gateway.jobs_world import Hand
from tests.gateway.world import CONFIG, Reply, World, chat, config, until

pytestmark = pytest.mark.redis

ASK = {"X-Rewarm-Hand-Off": "job"}
SHORT = {**ASK, "X-Rewarm-Max-Wait": "300ms"}


@pytest.fixture
def hand(world: World) -> Hand:
    return Hand(world)


async def finished(world: World, hand: Hand, told: dict[str, Any]) -> None:
    """The job that the client was told of runs, once, and its result can be read."""
    lease = await hand.take()
    assert lease.spec.id == told["id"]
    assert await hand.try_take() is None
    await hand.finish(lease, {"text": "late but whole"})
    result = await world.get(told["result_url"])
    assert (result.status, result.json) == (200, {"text": "late but whole"})


@pytest.mark.asyncio
async def test_at_the_end_of_its_patience_a_request_goes_on_as_a_job(world: World, hand: Hand) -> None:
    answer = await world.post(chat(temperature=0), SHORT)
    assert (answer.status, answer.code) == (503, "model_loading")
    assert answer.headers["x-should-retry"] == "false" and "Retry-After" not in answer.headers
    told = answer.json["job"]
    assert told == {
        "id": told["id"],
        "status_url": f"/v1/jobs/{told['id']}",
        "events_url": f"/v1/jobs/{told['id']}/events",
        "result_url": f"/v1/jobs/{told['id']}/result",
        "cancel_url": f"/v1/jobs/{told['id']}/cancel",
    }
    assert "loading" in answer.json and told["id"] in answer.json["error"]["message"]
    job = (await world.get(told["status_url"])).json
    assert (job["status"], job["queue_position"], job["endpoint"]) == ("queued", 0, "/v1/chat/completions")
    body = await hand.jobs.body(told["id"])
    assert body is not None and json.loads(body) == chat(temperature=0)
    await finished(world, hand, told)


@pytest.mark.asyncio
async def test_it_keeps_its_place_before_those_that_came_later(world: World) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(world.post(chat(), SHORT))

        async def first_waits() -> bool:
            ids = [call.id for call in world.gateways[0].calls]
            return ids != [] and await world.queue.positions("m", ids) == {ids[0]: 0}

        await until(first_waits, "the first waits")
        later = group.create_task(world.post(chat(user="later")))
        told = (await first).json["job"]
        assert (await world.get(told["status_url"])).json["queue_position"] == 0
        call = next(iter(world.gateways[0].calls))
        assert await world.queue.positions("m", [call.id]) == {call.id: 1}
        await world.ready("m")
        claimed = await Hand(world).take()
        assert claimed.spec.id == told["id"] and claimed.spec.band == 1, "in the band of its key, before the jobs'"
    assert later.result().status == 200


@pytest.mark.asyncio
async def test_a_stream_that_has_begun_is_told_in_its_last_event(world: World, hand: Hand) -> None:
    lines = [line async for line in world.lines(chat(), {**SHORT, "X-Rewarm-Max-Wait": "1s"})]
    assert lines[0].startswith(":") and lines[-2:] == ["data: [DONE]\n", "\n"]
    error = next(json.loads(line[6:]) for line in lines if line.startswith('data: {"error"'))["error"]
    assert error["code"] == "model_loading"
    await finished(world, hand, error["job"])


@pytest.mark.asyncio
async def test_a_plain_answer_that_was_padded_is_cut_and_the_retry_is_told(world: World, hand: Hand) -> None:
    with pytest.raises(Exception, match=r"(?i)payload|disconnect|closed"):
        await world.post(chat(), {**SHORT, "X-Rewarm-Max-Wait": "1s"})
    again = await world.post(chat(), SHORT)
    assert (again.status, again.code) == (503, "model_loading")
    await finished(world, hand, again.json["job"])


@pytest.mark.asyncio
async def test_a_client_that_tries_again_whatever_is_said_is_told_of_the_same_job(world: World, hand: Hand) -> None:
    told = (await world.post(chat(), SHORT)).json["job"]
    assert (await world.post(chat(), SHORT)).json["job"] == told
    assert await hand.waiting() == 1


@pytest.mark.asyncio
async def test_a_gateway_that_stops_hands_its_requests_off(world: World, hand: Hand) -> None:
    async with asyncio.TaskGroup() as group:
        asks = group.create_task(world.post(chat(), ASK))
        leaves = group.create_task(world.post(chat(user="other")))
        await until(lambda: len(world.gateways[0].room) == 2, "both wait")
        world.gateways[0].drain.begin()
    assert (leaves.result().status, leaves.result().code) == (503, "shutting_down")
    assert "job" not in leaves.result().json
    assert (asks.result().status, asks.result().code) == (503, "shutting_down")
    await finished(world, hand, asks.result().json["job"])


@pytest.mark.asyncio
async def test_a_grant_that_comes_in_that_moment_is_given_back_first(
    world: World, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not run as a request and as a job."""
    office = world.gateways[0].jobs
    adopt = office.jobs.adopt
    world.claims = False
    granted: list[str] = []

    async def late(ticket: str, *rest: Any) -> Submitted | None:
        if not granted:  # another process claims just before
            offer = grant_id()
            claimed = await world.queue.claim("m", "w", "m-1", "unix:/nowhere", [offer], request_id="late")
            granted.extend(grant.ticket for grant in claimed.grants)
        return await adopt(ticket, *rest)

    monkeypatch.setattr(office.jobs, "adopt", late)  # the moment cannot be hit otherwise
    answer = await world.post(chat(), SHORT)
    assert len(granted) == 1
    await finished(world, hand, answer.json["job"])
    assert (await world.queue.waiting(["m"]))["m"].count == 0


@pytest.mark.asyncio
async def test_a_heartbeat_in_that_moment_does_not_put_the_request_back(
    world: World, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has no such ticket any more, and the gateway does not know yet that it is a job now."""
    gateway = world.gateways[0]
    adopt = gateway.jobs.jobs.adopt

    async def slow(*ticket: Any) -> Submitted | None:
        adopted = await adopt(*ticket)
        await gateway.room.beat()
        return adopted

    monkeypatch.setattr(gateway.jobs.jobs, "adopt", slow)  # the moment cannot be hit otherwise
    answer = await world.post(chat(), SHORT)
    waiting = (await world.queue.waiting(["m"]))["m"]
    assert (waiting.count, waiting.jobs) == (0, 1)
    await finished(world, hand, answer.json["job"])


# --- who asks, and who may -------------------------------------------------------------------------------------------


async def after_patience(make_world: Any, policy: str, headers: dict[str, str], **fields: Any) -> Reply:
    world: World = await make_world(config(CONFIG + f"jobs: {{hand_off: {policy}, max_body: 1KiB}}\n"))
    await world.gateway()
    await world.known("m", "cold")
    answer: Reply = await world.post(chat(**fields), {"X-Rewarm-Max-Wait": "300ms", **headers})
    assert answer.status == 503
    return answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("policy", "headers", "handed_off"),
    [
        ("ask", {}, False),
        ("ask", ASK, True),
        ("always", {}, True),
        ("always", {"X-Rewarm-Hand-Off": "none"}, False),
        ("never", ASK, False),
    ],
)
async def test_whether_is_the_client_s_wish_and_the_operator_s(
    make_world: Any, policy: str, headers: dict[str, str], handed_off: bool
) -> None:
    answer = await after_patience(make_world, policy, headers)
    assert ("job" in answer.json) == handed_off
    assert ("Retry-After" in answer.headers) != handed_off


@pytest.mark.asyncio
async def test_why_it_did_not_become_a_job(make_world: Any) -> None:
    answer = await after_patience(make_world, "ask", ASK, user="x" * 2000)
    assert answer.json["hand_off"]["code"] == "job_body_too_large"
    assert "Retry-After" in answer.headers, "as without the wish"


@pytest.mark.asyncio
async def test_a_wish_that_is_none_is_told_before_the_wait(world: World) -> None:
    answer = await world.post(chat(), {"X-Rewarm-Hand-Off": "please"})
    assert (answer.status, answer.code, answer.json["error"]["param"]) == (400, "invalid_header", "X-Rewarm-Hand-Off")
