"""A model at zero, or a busy one: the request is held, its client sees progress, and nothing is lost."""

from __future__ import annotations

import asyncio
import functools
import json
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rewarm.messages import Explanation
from rewarm.states import ReplicaState
from tests.gateway.world import HELLO, World, chat, config, hello, sse, until

pytestmark = pytest.mark.redis


def _shown(lines: list[str], sign: str) -> bool:
    return any(sign in line for line in lines)


async def waiting(world: World, count: int, model: str = "m") -> None:
    async def enough() -> bool:
        return (await world.queue.waiting([model]))[model].count == count

    await until(enough, f"{count} wait for {model}")


@pytest.mark.asyncio
async def test_a_held_request_is_answered_once_the_model_is_ready(world: World) -> None:
    async with asyncio.TaskGroup() as group:
        held = group.create_task(world.post(chat()))
        await waiting(world, 1)
        gate = await world.ready("m")
    answer = held.result()
    assert (answer.status, answer.text) == (200, "Hello there")
    assert answer.headers["X-Rewarm-Start"] == "cold"
    assert "queue;dur=" in answer.headers["Server-Timing"]
    assert "X-Rewarm-Grant" in gate.requests[0][0]
    await waiting(world, 0)


@pytest.mark.asyncio
async def test_who_waits_reads_why(world: World) -> None:
    """In the stream, in `/v1/models`, in the error when patience ends, and afterwards in the receipt."""
    why = "waits for room: coder sleeps first (least recently used, idle 12 s)"
    lines: list[str] = []

    async def client() -> None:
        async for line in world.lines(chat()):
            lines.append(line)  # noqa: PERF401  # seen as they come

    async with asyncio.TaskGroup() as group:
        group.create_task(client())
        await waiting(world, 1)
        await world.publisher.explain(Explanation(model="m", text=why))
        await until(lambda: _shown(lines, f"phase=cold position=0 ({why})"), "it is shown", 4)
        assert (await world.get("/v1/models/m")).json["rewarm"]["waits_for"] == why
        refused = await world.post(chat(stream=False), headers={"X-Rewarm-Max-Wait": "200ms"})
        assert refused.json["error"]["message"].endswith(why)
        assert refused.json["loading"]["message"] == why
        await world.publisher.unexplain("m")
        await world.ready("m")
    request = json.loads(next(line for line in lines if "rewarm" in line)[6:])["id"].removeprefix("chatcmpl-")
    assert (await world.get(f"/v1/requests/{request}")).json["waited_for"] == [why]
    assert (await world.get("/v1/models/m")).json["rewarm"]["waits_for"] is None


@pytest.mark.asyncio
async def test_a_stream_shows_progress_and_then_the_answer(world: World) -> None:
    lines: list[str] = []

    async def client() -> None:
        async for line in world.lines(chat()):
            lines.append(line)  # noqa: PERF401  # seen as they come

    async with asyncio.TaskGroup() as group:
        group.create_task(client())
        await waiting(world, 1)
        for step, fraction in enumerate((0.1, 0.25, 0.4)):
            await world.loading(
                "m", phase=ReplicaState.RESTORING, fraction=fraction, bytes_done=step * 10, bytes_total=20, eta_s=3.0
            )
            sign = f"loading {fraction * 100:.1f}%"
            await until(functools.partial(_shown, lines, sign), f"{fraction} is shown")
        await world.ready("m")
    comments = [line for line in lines if line.startswith(":")]
    assert all(line.endswith("\n") and not line.endswith("\n\n") for line in comments)
    assert ": loading 40.0% phase=restoring bytes=20/20 eta_s=3 position=0\n" in comments
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    preface, *rest = events
    assert preface["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert preface["rewarm"]["start"] == "cold"
    assert preface["rewarm"]["model"] == "m"
    assert all("role" not in event["choices"][0]["delta"] for event in rest)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "Hello there"
    assert lines[-2:] == ["data: [DONE]\n", "\n"]
    assert not any(line.startswith(("event:", "id:", "retry:")) for line in lines)
    # A comment is never followed by a blank line of its own: clients would take that for an empty event.
    assert not any(a.startswith(":") and b == "\n" for a, b in pairwise(lines))


@pytest.mark.asyncio
async def test_progress_as_chunks_on_request(world: World) -> None:
    async with asyncio.TaskGroup() as group:
        held = group.create_task(world.post(chat(stream=True), {"X-Rewarm-Progress": "chunks"}))
        await waiting(world, 1)
        await world.loading("m", phase=ReplicaState.RESTORING, fraction=0.3, bytes_done=3, bytes_total=10)
        await world.known("m", "loading")
        await until(lambda: any(call.status for call in world.gateways[0].calls), "the status line is out")
        await world.ready("m")
    events = [json.loads(line[6:]) for line in held.result().body.decode().splitlines() if line.startswith("data: {")]
    told = [event["rewarm"] for event in events if "rewarm" in event]
    shown = [chunk for chunk in told if chunk.get("fraction") == 0.3]
    assert shown[0]["state"] == "loading" and shown[0]["phase"] == "restoring" and shown[0]["bytes_total"] == 10
    assert all(len(event["choices"]) == 1 for event in events)
    assert sum("role" in event["choices"][0]["delta"] for event in events) == 1


@pytest.mark.asyncio
async def test_progress_none_keeps_the_true_status_to_the_end(world: World) -> None:
    async with asyncio.TaskGroup() as group:
        headers = {"X-Rewarm-Progress": "none", "X-Rewarm-Max-Wait": "1s"}
        held = group.create_task(world.post(chat(stream=True), headers))
    assert (held.result().status, held.result().code) == (503, "model_loading")


@pytest.mark.asyncio
async def test_plain_json_is_padded_with_whitespace(world: World) -> None:
    async with asyncio.TaskGroup() as group:
        held = group.create_task(world.post(chat()))
        await until(lambda: any(call.status for call in world.gateways[0].calls), "the status line is out")
        await world.ready("m")
    answer = held.result()
    assert answer.body.startswith(b" ")
    assert answer.text == "Hello there"
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.asyncio
async def test_patience_ends_with_a_typed_answer_and_the_retry_finds_its_place(world: World) -> None:
    await world.loading("m", phase=ReplicaState.STARTING, fraction=0.2, eta_s=40.0)
    await world.known("m", "loading")
    answer = await world.post(chat(), {"X-Rewarm-Max-Wait": "300ms"})
    assert (answer.status, answer.code) == (503, "model_loading")
    assert int(answer.headers["Retry-After"]) <= 8
    assert answer.json["loading"]["phase"] == "starting"
    assert answer.json["loading"]["fraction"] == 0.2
    assert answer.json["loading"]["eta_s"] == 40.0
    assert answer.json["loading"]["queue_position"] == 0
    await waiting(world, 0)
    async with asyncio.TaskGroup() as group:
        other = group.create_task(world.post(chat(user="later")))
        await waiting(world, 1)
        again = group.create_task(world.post(chat()))
        await waiting(world, 2)
        positions = await world.queue.positions("m", [call.id for call in world.gateways[0].calls])
        assert list(positions.values()) == [1, 0], "the retry stands before the one that came in between"
        await world.ready("m")
    assert other.result().status == again.result().status == 200


@pytest.mark.asyncio
async def test_an_eta_beyond_all_patience_is_hopeless(make_world: Any) -> None:
    world = await make_world(config().model_copy(update={}))
    await world.gateway()
    await world.loading("m", phase=ReplicaState.FETCHING, fraction=0.0, eta_s=100_000.0)
    await world.known("m", "loading")
    answer = await world.post(chat(), {"X-Rewarm-Max-Wait": "0"})
    assert (answer.status, answer.code) == (504, "load_timeout")
    assert answer.headers["x-should-retry"] == "false"


@pytest.mark.asyncio
async def test_a_client_that_leaves_the_queue_keeps_its_place_for_a_while(world: World) -> None:
    held = asyncio.create_task(world.post(chat()))
    await waiting(world, 1)
    held.cancel()
    await waiting(world, 0)
    await until(lambda: not len(world.gateways[0].room), "the waiting room is empty")
    assert world.gateways[0].holding.count == 0
    assert world.gateways[0].holding.bytes == 0

    async def kept() -> bool:
        pattern = world.client.keys.again("*").replace("[", "\\[")
        return bool([key async for key in world.client.redis.scan_iter(pattern)])

    await until(kept, "its place is kept for a retry")


@pytest.mark.asyncio
async def test_more_than_the_slots_wait_their_turn_and_never_run_at_once(world: World) -> None:
    async def brief(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        return await hello(request, body)

    async with asyncio.TaskGroup() as group:
        held = [group.create_task(world.post(chat(user=str(n)))) for n in range(30)]
        await waiting(world, 30)
        gate = await world.ready("m", slots=2)
        gate.answer = brief
    assert [task.result().text for task in held] == ["Hello there"] * 30
    assert gate.peak <= 2
    assert gate.served == 30
    await waiting(world, 0)


@pytest.mark.asyncio
async def test_a_full_gate_makes_a_ticket(world: World) -> None:
    gate = await world.ready("m", slots=1)
    hold = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await hold.wait()
        return await hello(request, body)

    gate.answer = slow
    await world.known("m")
    async with asyncio.TaskGroup() as group:
        first = group.create_task(world.post(chat()))
        await until(lambda: gate.running == 1, "the slot is taken")
        second = group.create_task(world.post(chat(user="second")))
        await waiting(world, 1)
        hold.set()
    assert first.result().headers["X-Rewarm-Start"] == "warm"
    assert second.result().headers["X-Rewarm-Start"] == "queued"


class TestAModelThatCannotLoad:
    @pytest.mark.asyncio
    async def test_the_failure_is_remembered_and_told_at_once(self, world: World) -> None:
        await world.failed("m", "needs 9.0 TiB")
        await world.known("m", "failed")
        answer = await world.post(chat())
        assert (answer.status, answer.code) == (500, "model_load_failed")
        assert "message" not in answer.json["failure"], "said once"
        assert answer.headers["x-should-retry"] == "false"
        assert "9.0 TiB" in answer.json["error"]["message"]
        assert answer.json["reason"] == "never_fits"
        await waiting(world, 0)

    @pytest.mark.asyncio
    async def test_a_held_request_gets_the_typed_error(self, world: World) -> None:
        async with asyncio.TaskGroup() as group:
            held = group.create_task(world.post(chat()))
            await waiting(world, 1)
            failure = await world.failed("m")
            _, term = world.leader.claim()
            await world.queue.fail_all("m", "model_load_failed", "cannot load", failure, "leader", term)
        assert (held.result().status, held.result().code) == (500, "model_load_failed")

    @pytest.mark.asyncio
    async def test_a_stream_that_has_begun_ends_with_an_error_event(self, world: World) -> None:
        lines: list[str] = []

        async def client() -> None:
            async for line in world.lines(chat()):
                lines.append(line)  # noqa: PERF401  # seen as they come

        async with asyncio.TaskGroup() as group:
            group.create_task(client())
            await until(lambda: lines, "the stream has begun")
            failure = await world.failed("m")
            _, term = world.leader.claim()
            await world.queue.fail_all("m", "model_load_failed", "cannot load", failure, "leader", term)
        data = [line.strip()[6:] for line in lines if line.startswith("data:")]
        assert data[-1] == "[DONE]"
        error = json.loads(data[-2])
        assert list(error) == ["error"]
        assert error["error"]["code"] == "model_load_failed"
        assert json.loads(data[-3])["choices"][0]["delta"] == {"role": "assistant", "content": ""}

    @pytest.mark.asyncio
    async def test_padded_json_is_cut_off_and_the_retry_gets_the_true_status(self, world: World) -> None:
        async def client() -> None:
            with pytest.raises(aiohttp.ClientPayloadError):
                await world.post(chat())

        async with asyncio.TaskGroup() as group:
            group.create_task(client())
            await until(lambda: any(call.status for call in world.gateways[0].calls), "padding has begun")
            failure = await world.failed("m", kept_s=0)
            _, term = world.leader.claim()
            await world.queue.fail_all("m", "model_load_failed", "cannot load", failure, "leader", term)
        retry = await world.post(chat())
        assert (retry.status, retry.code) == (500, "model_load_failed")
        assert retry.headers["x-should-retry"] == "false"


@pytest.mark.asyncio
async def test_a_grant_to_a_gate_that_is_gone_costs_nothing_but_time(world: World) -> None:
    world.claims = False
    async with asyncio.TaskGroup() as group:
        held = group.create_task(world.post(chat()))
        await waiting(world, 1)
        await world.queue.claim("m", "w", "gone", "unix:/nowhere.sock", ["grant-x"], request_id="r1")
        await until(lambda: any(call.requeues for call in world.gateways[0].calls), "the grant was tried")
        await world.ready("m")
        world.claims = True
    assert held.result().text == "Hello there"


@pytest.mark.asyncio
async def test_a_gate_that_refuses_so_late_that_the_ticket_is_gone_does_not_strand_its_request(world: World) -> None:
    """A gate silent for a while is taken to have accepted, and the ticket is redeemed; then it refuses after all."""
    refused = False

    async def refuse_late(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal refused
        if refused:
            return await hello(request, body)
        refused = True
        await until(lambda: _leased(world, 0), "the grant counts as accepted: the ticket is gone")
        return web.json_response({}, status=503, headers={"X-Rewarm-Busy": "draining"})

    async with asyncio.TaskGroup() as group:
        held = group.create_task(world.post(chat()))
        await waiting(world, 1)
        gate = await world.ready("m")
        gate.answer = refuse_late
    assert held.result().text == "Hello there"
    assert refused


@pytest.mark.asyncio
async def test_a_second_grant_is_declined(world: World) -> None:
    gate = await world.ready("m", slots=1)
    hold = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await hold.wait()
        return await hello(request, body)

    gate.answer = slow
    await world.known("m")
    gateway = world.gateways[0]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(world.post(chat()))
        await until(lambda: gate.running == 1, "it runs")
        # The same request's ticket appears in the queue once more, as after a reply of Redis that was lost.
        from rewarm.messages import Ticket

        call = next(iter(gateway.calls))
        world.claims = False
        await world.queue.enqueue(Ticket(id=call.id, model="m", tenant="t", gateway=gateway.id, band=1), max_waiting=10)
        await world.queue.claim("m", "w", "m-1", gate.endpoint, ["grant-2"], request_id="r2")
        await until(lambda: _leased(world, 0), "the second grant is declined, the ticket gone")
        await waiting(world, 0)
        hold.set()
    assert running.result().status == 200
    assert gate.served == 1


async def _leased(world: World, count: int) -> bool:
    return bool(await world.client.redis.zcard(world.client.keys.lease) == count)


@pytest.mark.asyncio
async def test_tickets_that_redis_lost_are_enqueued_again(world: World) -> None:
    async with asyncio.TaskGroup() as group:
        held = group.create_task(world.post(chat()))
        await waiting(world, 1)
        await world.queue.cancel(next(iter(world.gateways[0].calls)).id)
        await waiting(world, 0)
        await waiting(world, 1)
        await world.ready("m")
    assert held.result().status == 200


@pytest.mark.asyncio
async def test_the_engine_s_refusal_after_a_wait_is_told_in_the_stream_or_to_the_retry(world: World) -> None:
    """The status line said 200 while the request waited; the engine says 400."""

    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too hot", "code": "bad_temperature"}}, status=400)

    async def plain() -> None:
        with pytest.raises(aiohttp.ClientPayloadError):
            await world.post(chat())

    async with asyncio.TaskGroup() as group:
        group.create_task(plain())
        stream = group.create_task(world.post(chat(stream=True)))
        await until(lambda: sum(bool(c.status) for c in world.gateways[0].calls) == 2, "both status lines are out")
        gate = await world.ready("m")
        gate.answer = refuse
    *_, error, done = [event for event in stream.result().body.decode().split("\n\n") if event]
    assert json.loads(error[6:])["error"]["code"] == "bad_temperature"
    assert done == "data: [DONE]"
    retry = await world.post(chat())
    assert (retry.status, retry.code) == (400, "bad_temperature")


@pytest.mark.asyncio
async def test_a_gap_within_a_stream_is_filled_with_comments_between_events(world: World) -> None:
    gate = await world.ready("m")
    go_on = asyncio.Event()

    async def pauses(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(sse(*HELLO[:2]) + b"data: {")
        await go_on.wait()
        await response.write(sse(*HELLO[2:])[len(b"data: {") :])
        await response.write_eof()
        return response

    gate.answer = pauses
    await world.known("m")
    lines = []
    async for line in world.lines(chat()):
        lines.append(line)
        if line.startswith(": running"):
            go_on.set()
    assert [line for line in lines if not line.startswith(":")] == sse(*HELLO).decode().splitlines(keepends=True)
