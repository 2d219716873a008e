"""``/v1/responses``: passed on like a chat, or with ``background: true`` kept, polled, followed and cancelled."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from aiohttp import web

from rewarm.jobs import JobState
from rewarm.states import ReplicaState
from tests.gateway.jobs_world import Hand, act
from tests.gateway.responses_world import (
    RECORDED,
    SAID,
    answer,
    body,
    create,
    created,
    finish,
    follow,
    recorded,
    say,
)
from tests.gateway.world import CONFIG, World, config, streamed, until

pytestmark = pytest.mark.redis


@pytest.fixture
def hand(world: World) -> Hand:
    return Hand(world)


async def show(world: World, id_: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    reply = await world.get(f"/v1/responses/{id_}", headers)
    assert reply.status == 200, reply.body
    told: dict[str, Any] = reply.json
    return told


# --- in the foreground -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_response_in_the_foreground_passes_untouched(world: World) -> None:
    gate = await world.ready("m")

    async def engine(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        assert request.path == "/v1/responses"
        if asked.get("stream"):
            return await streamed(request, RECORDED[:700], RECORDED[700:])
        return web.json_response(answer())

    gate.answer = engine
    await world.known("m")
    plain = await create(world, background=False)
    assert (plain.status, plain.json) == (200, answer())
    stream = await create(world, background=None, stream=True)
    assert (stream.status, stream.body) == (200, RECORDED), "no [DONE] is missed: it has none"


@pytest.mark.asyncio
async def test_a_stream_that_waits_shows_comments_and_nothing_else(world: World) -> None:
    """Clients of typed events check their order: a no-op chunk would break them."""
    await world.loading("m", phase=ReplicaState.RESTORING, fraction=0.5)
    await world.known("m", "loading")
    headers = {"X-Rewarm-Progress": "chunks"}
    asked = body(background=False, stream=True)
    async with world.http.post(f"{world.base}/v1/responses", json=asked, headers=headers) as reply:
        first = await reply.content.readline()
        assert first.startswith(b": loading 50.0% phase=restoring")
        gate = await world.ready("m")

        async def engine(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
            return await streamed(request, RECORDED)

        gate.answer = engine
        rest = await reply.read()
    assert rest.endswith(RECORDED)
    comments = rest.removesuffix(RECORDED).decode().splitlines()
    assert all(line.startswith(": ") for line in comments), comments


@pytest.mark.asyncio
async def test_a_stream_without_its_last_event_ends_with_an_error_of_its_kind(world: World) -> None:
    gate = await world.ready("m")

    async def engine(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        return await streamed(request, *recorded()[:-1])

    gate.answer = engine
    await world.known("m")
    got = (await create(world, background=False, stream=True)).body
    last = got.strip().split(b"\n\n")[-1].decode()
    name, data = last.split("\n")
    assert name == "event: error"
    told = json.loads(data.removeprefix("data: "))
    assert told["error"]["code"] == told["code"] == "stream_truncated"
    assert b"[DONE]" not in got


# --- in the background -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_response_from_its_creation_to_its_end(world: World, hand: Hand) -> None:
    reply = await create(world, model="alias", instructions="be brief", metadata={"a": "b"}, temperature=0)
    told = reply.json
    id_ = told["id"]
    assert reply.status == 200 and id_.startswith("resp_")
    assert (told["object"], told["status"], told["background"], told["model"]) == ("response", "queued", True, "alias")
    assert (told["output"], told["error"], told["usage"]) == ([], None, None)
    assert (told["instructions"], told["metadata"], told["temperature"]) == ("be brief", {"a": "b"}, 0)
    assert told["rewarm"]["progress"]["phase"] == "cold" and told["rewarm"]["queue_position"] == 0

    lease = await hand.take()
    sent = json.loads(await hand.jobs.body(id_) or b"")
    assert sent["stream"] is True and "background" not in sent and sent["input"] == "Say hi"
    assert (await show(world, id_))["status"] == "in_progress"
    await say(hand, lease, *recorded())
    await finish(hand, lease)
    told = await show(world, id_)
    assert (told["id"], told["status"], told["background"]) == (id_, "incomplete", True)
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}, "as the engine says: it was cut off"
    assert told["output"][0]["content"][0]["text"] == SAID
    assert told["usage"]["output_tokens"] == 8
    assert told["created_at"] <= told["completed_at"]
    assert "rewarm" not in told


@pytest.mark.asyncio
async def test_how_the_states_of_a_job_are_told(world: World, hand: Hand) -> None:
    failed, refused = await created(world), await created(world)
    lease = await hand.take()
    await hand.finish(
        lease, b"", state=JobState.FAILED, http_status=502, error_code="worker_died", error_message="it died"
    )
    lease = await hand.take()
    error = {"error": {"message": "too hot", "code": "bad_temperature"}}
    await hand.finish(
        lease, error, state=JobState.FAILED, http_status=400, error_code="bad_temperature", error_message="too hot"
    )
    told = await show(world, failed)
    assert (told["status"], told["error"]["code"], told["output"]) == ("failed", "worker_died", [])
    told = await show(world, refused)
    assert (told["status"], told["error"]) == ("failed", {"code": "bad_temperature", "message": "too hot"})


@pytest.mark.asyncio
async def test_cancelling_is_idempotent_and_an_ended_response_stays_as_it_is(world: World, hand: Hand) -> None:
    queued = await created(world)
    for _ in range(2):
        reply = await act(world, "POST", f"/v1/responses/{queued}/cancel")
        assert (reply.status, reply.json["status"], reply.json["error"]) == (200, "cancelled", None)
    running = await created(world)
    lease = await hand.take()
    async with asyncio.TaskGroup() as group:
        cancelled = group.create_task(act(world, "POST", f"/v1/responses/{running}/cancel"))

        async def told() -> bool:
            return (await hand.jobs.renew(hand.boot, [(running, lease.attempt)]))[running] == "cancel"

        await until(told, "the worker is told")
        await hand.finish(lease, b"", state=JobState.CANCELLED, http_status=0, error_code="job_cancelled")
    assert cancelled.result().json["status"] == "cancelled"
    done = await created(world)
    await finish(hand, await hand.take())
    reply = await act(world, "POST", f"/v1/responses/{done}/cancel")
    assert reply.json["status"] == "incomplete"


@pytest.mark.asyncio
async def test_a_deleted_response_is_gone_and_a_queued_one_is_cancelled_first(world: World, hand: Hand) -> None:
    done = await created(world)
    await finish(hand, await hand.take())
    queued = await created(world)
    for id_ in (done, queued):
        reply = await act(world, "DELETE", f"/v1/responses/{id_}")
        assert (reply.status, reply.json) == (200, {"id": id_, "object": "response", "deleted": True})
        assert (await world.get(f"/v1/responses/{id_}")).code == "response_not_found"
        assert (await act(world, "DELETE", f"/v1/responses/{id_}")).status == 404
    assert await hand.waiting() == 0


@pytest.mark.asyncio
async def test_the_input_can_be_read_again_while_it_runs(world: World) -> None:
    id_ = await created(world)
    items = (await world.get(f"/v1/responses/{id_}/input_items")).json["data"]
    assert items[0]["content"] == [{"type": "input_text", "text": "Say hi"}]


@pytest.mark.asyncio
async def test_the_same_idempotency_key_is_the_same_response(world: World) -> None:
    key = {"Idempotency-Key": "k"}
    id_ = await created(world, key)
    assert await created(world, key) == id_
    assert (await create(world, key, input="other")).code == "idempotency_conflict"


# --- following -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_background_and_stream_together_begin_at_once_and_can_be_resumed(world: World, hand: Hand) -> None:
    async with world.http.post(f"{world.base}/v1/responses", json=body(stream=True)) as reply:
        first = await reply.content.readuntil(b"\n\n")
        assert first.startswith(b"event: response.created\n"), "before any engine is there"
        id_ = json.loads(first.partition(b"data: ")[2])["response"]["id"]
    lease = await hand.take()
    await say(hand, lease, *recorded()[:6])
    async with follow(world, id_, after=0) as client:
        await client.until("response.output_text.delta")
        await client.until("response.output_text.delta")
        seen = client.seen
    assert [event["sequence_number"] for event in seen] == list(range(1, len(seen) + 1))
    await say(hand, lease, *recorded()[6:])
    await finish(hand, lease)
    async with follow(world, id_, after=seen[-1]["sequence_number"]) as client:
        rest = await client.rest()
    numbers = [event["sequence_number"] for event in (*seen, *rest)]
    assert numbers == list(range(1, len(numbers) + 1)), "nothing is missed, nothing comes twice"
    assert "".join(e.get("delta", "") for e in (*seen, *rest)) == SAID
    last = rest[-1]
    assert last["type"] == "response.incomplete" and last["response"]["id"] == id_
    assert last["response"] == await show(world, id_)


@pytest.mark.asyncio
async def test_a_client_cut_ten_times_on_two_gateways_misses_and_doubles_nothing(world: World, hand: Hand) -> None:
    await world.gateway()
    id_ = await created(world)
    lease = await hand.take()
    seen: list[dict[str, Any]] = []
    said = iter(recorded())
    for cut in range(10):
        await say(hand, lease, *[event for event, _ in zip(said, range(2), strict=False)])
        after = seen[-1]["sequence_number"] if seen else None
        async with follow(world, id_, after, base=world.urls[cut % 2]) as client:
            event = await client.next()
            assert event is not None
            seen.append(event)
    await say(hand, lease, *said)
    await finish(hand, lease)
    async with follow(world, id_, seen[-1]["sequence_number"]) as client:
        seen += await client.rest()
    async with follow(world, id_) as client:
        whole = await client.rest()
    assert [e["sequence_number"] for e in seen] == list(range(len(whole)))
    assert [(e["type"], e.get("delta")) for e in seen] == [(e["type"], e.get("delta")) for e in whole]


@pytest.mark.asyncio
async def test_a_client_sees_that_the_answer_began_anew_and_numbers_go_on(world: World, hand: Hand) -> None:
    id_ = await created(world)
    lease = await hand.take()
    await say(hand, lease, *recorded()[:7])
    async with follow(world, id_) as client:
        while client.text != "Hello there,":
            await client.until("response.output_text.delta")
        await hand.lose(lease)
        lease = await hand.take()
        await say(hand, lease, *recorded())
        restart = await client.until("response.output_item.done")
        assert restart["item"]["status"] == "incomplete"
        told = await client.until("response.in_progress")
        assert told["rewarm"] == {"restarted": True, "attempt": 2}
        after = client.numbers[-1]
        await finish(hand, lease)
        await client.rest()
        assert client.numbers == list(range(len(client.numbers)))
        assert client.seen[-1]["response"]["output"][0]["content"][0]["text"] == SAID
    async with follow(world, id_, after) as resumed:
        await resumed.rest()
        assert resumed.text == SAID
        assert resumed.numbers == list(range(after + 1, client.numbers[-1] + 1))


@pytest.mark.asyncio
async def test_a_waiting_client_is_shown_the_load_in_comments(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.openai.following.COMMENT_EVERY_S", 0.2)
    id_ = await created(world)
    await world.loading("m", phase=ReplicaState.RESTORING, fraction=0.42)
    await world.known("m", "loading")
    async with follow(world, id_, after=1) as client:
        reading = asyncio.create_task(client.rest())
        await until(lambda: any("42.0% phase=restoring" in c for c in client.comments), "a comment tells the load")
        await act(world, "POST", f"/v1/responses/{id_}/cancel")
        (last,) = await reading
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert (last["sequence_number"], last["response"]["error"]) == (2, None)


@pytest.mark.asyncio
async def test_a_failure_is_the_last_event(world: World, hand: Hand) -> None:
    id_ = await created(world)
    lease = await hand.take()
    await hand.finish(
        lease, b"", state=JobState.FAILED, http_status=504, error_code="job_timeout", error_message="long"
    )
    async with follow(world, id_) as client:
        last = (await client.rest())[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "job_timeout", "message": "long"}


@pytest.mark.asyncio
async def test_when_the_output_is_gone_the_end_still_has_all_of_it(world: World, hand: Hand) -> None:
    id_ = await created(world)
    lease = await hand.take()
    await say(hand, lease, *recorded())
    await finish(hand, lease)
    await world.client.call("DEL", world.client.keys.out(id_))  # as half an hour after the end
    async with follow(world, id_, after=9) as client:
        (last,) = await client.rest()
    assert last["sequence_number"] == 10
    assert last["response"]["output"][0]["content"][0]["text"] == SAID


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"input": None}, 400, "invalid_request", "input"),
        ({"background": "yes"}, 400, "invalid_request", "background"),
        ({"store": False}, 400, "invalid_request", "store"),
        ({"previous_response_id": "resp_1"}, 400, "invalid_request", "previous_response_id"),
        ({"metadata": {"a": 1}}, 400, "invalid_request", "metadata"),
        ({"model": "unknown"}, 404, "model_not_found", "model"),
        ({"input": "x" * 1_100_000}, 413, "job_body_too_large", None),
    ],
)
async def test_bad_requests(
    world: World, hand: Hand, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    reply = await create(world, **fields)
    assert (reply.status, reply.code, reply.json["error"]["param"]) == (status, code, param)
    assert await hand.waiting() == 0


@pytest.mark.asyncio
async def test_bad_questions(world: World) -> None:
    id_ = await created(world)
    for path, status, code in (
        ("resp_unknown", 404, "response_not_found"),
        (f"{id_}/other", 404, "not_found"),
        (f"{id_}?starting_after=3", 400, "invalid_request"),
        (f"{id_}?stream=true&starting_after=-1", 400, "invalid_request"),
        (f"{id_}?stream=maybe", 400, "invalid_request"),
        (f"{id_}/cancel", 405, "method_not_allowed"),
    ):
        reply = await world.get(f"/v1/responses/{path}")
        assert (reply.status, reply.code) == (status, code), path


@pytest.mark.asyncio
async def test_a_job_is_no_response_and_another_key_s_is_unknown(make_world: Any) -> None:
    keys = "".join(
        f"  - {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}}}\n" for name in ("alice", "bob")
    )
    world: World = await make_world(config(CONFIG + "keys:\n" + keys))
    await world.gateway()
    await world.known("m", "cold")
    alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    id_ = await created(world, alice)
    assert (await world.get(f"/v1/responses/{id_}", bob)).code == "response_not_found"
    assert (await act(world, "POST", f"/v1/responses/{id_}/cancel", bob)).code == "response_not_found"
    assert (await act(world, "DELETE", f"/v1/responses/{id_}", bob)).code == "response_not_found"
    assert (await world.get(f"/v1/responses/{id_}")).status == 401
    job = (await world.post({"model": "m", "messages": []}, alice, "/v1/jobs")).json["id"]
    assert (await world.get(f"/v1/responses/{job}", alice)).code == "response_not_found"
    assert (await show(world, id_, alice))["status"] == "queued"
