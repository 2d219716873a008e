"""``/v1/batches``: many requests in a file, their answers in another one, in the same order."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Any

import pytest

from fleet import line_job_id
from rewarm.jobs import JobOutcome, JobState
from tests.gateway.batches_world import (
    CHAT,
    create,
    created,
    jsonl,
    line,
    lines,
    output,
    running,
    show,
    when,
)
from tests.gateway.jobs_world import Hand, act
from tests.gateway.test_files import uploaded
from tests.gateway.world import CONFIG, World, config, until

pytestmark = pytest.mark.redis


@pytest.fixture
def hand(world: World) -> Hand:
    return Hand(world)


def content(written: dict[str, Any]) -> str:
    text: str = written["response"]["body"]["choices"][0]["message"]["content"]
    return text


# --- the way of a batch ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_batch_from_its_file_to_its_answers(world: World) -> None:
    id_ = await created(world, lines(20), metadata={"night": "shift"})
    async with running(world):
        told = await when(world, id_)
    assert told["status"] == "completed"
    assert told["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert (told["object"], told["endpoint"], told["metadata"]) == ("batch", CHAT, {"night": "shift"})
    assert told["created_at"] <= told["in_progress_at"] <= told["finalizing_at"] <= told["completed_at"]
    assert told["expires_at"] - told["created_at"] == 86400
    assert (told["errors"], told["error_file_id"], told["failed_at"]) == (None, None, None)
    assert (told["usage"]["input_tokens"], told["usage"]["output_tokens"]) == (40, 60)
    written = await output(world, told["output_file_id"])
    assert [each["custom_id"] for each in written] == [f"line-{n}" for n in range(20)]
    assert [content(each) for each in written] == [f"TEXT {n}" for n in range(20)]
    assert {each["response"]["status_code"] for each in written} == {200}
    assert len({each["id"] for each in written}) == 20 and {each["error"] for each in written} == {None}
    file = (await world.get(f"/v1/files/{told['output_file_id']}")).json
    assert (file["purpose"], file["filename"]) == ("batch_output", f"{id_}_output.jsonl")
    jobs = (await world.get("/v1/jobs?kind=batch")).json["data"]
    assert jobs == [], "what is in the output file is not kept twice"


@pytest.mark.asyncio
async def test_counts_live_and_order_whatever_ends_first(world: World, hand: Hand) -> None:
    id_ = await created(world, lines(3))
    leases = [await hand.take() for _ in range(3)]
    for lease in reversed(leases[1:]):
        await hand.finish(lease, {"choices": [{"message": {"content": lease.spec.custom_id}}]})

    async def completed() -> bool:
        told = await show(world, id_)
        assert told["status"] == "in_progress" and told["output_file_id"] is None
        return bool(told["request_counts"]["completed"] == 2)

    await until(completed, "two are counted")
    await hand.finish(leases[0], {"choices": [{"message": {"content": leases[0].spec.custom_id}}]})
    told = await when(world, id_, "completed")
    assert [content(each) for each in await output(world, told["output_file_id"])] == ["line-0", "line-1", "line-2"]


@pytest.mark.asyncio
async def test_each_line_is_a_job_of_its_own_with_what_the_engine_needs(world: World, hand: Hand) -> None:
    data = jsonl(line("a", model="alias", stream=True, stream_options={"x": 1}, temperature=0))
    id_ = await created(world, data, priority="normal")
    lease = await hand.take()
    spec = lease.spec
    assert (spec.id, spec.batch, spec.custom_id, spec.kind) == (line_job_id(id_, 1), id_, "a", "batch")
    assert (spec.model, spec.asked_model, spec.path, spec.priority) == ("m", "alias", CHAT, "normal")
    body = json.loads(await hand.jobs.body(spec.id) or b"")
    assert body == {"model": "alias", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}


@pytest.mark.asyncio
async def test_what_fails_is_in_the_error_file_with_its_reason(world: World) -> None:
    data = jsonl(line("good"), line("refused", "fail"), line("lost", "die"), line("fine"))
    id_ = await created(world, data)
    async with running(world):
        told = await when(world, id_)
    assert told["status"] == "completed"
    assert told["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    assert [e["custom_id"] for e in await output(world, told["output_file_id"])] == ["good", "fine"]
    refused, lost = await output(world, told["error_file_id"])
    assert refused["custom_id"] == "refused" and refused["error"] is None
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["code"] == "refused"
    assert lost["response"] is None
    assert lost["error"] == {"code": "worker_died", "message": "it died"}


@pytest.mark.asyncio
async def test_a_batch_of_responses(world: World, hand: Hand) -> None:
    ask = {"model": "m", "input": "Hi", "background": True}
    data = jsonl({"custom_id": "r", "method": "POST", "url": "/v1/responses", "body": ask})
    id_ = await created(world, data, endpoint="/v1/responses")
    lease = await hand.take()
    assert json.loads(await hand.jobs.body(lease.spec.id) or b"") == {"model": "m", "input": "Hi"}
    await hand.finish(lease, {"object": "response"}, usage={"input_tokens": 1, "output_tokens": 2})
    told = await when(world, id_)
    assert (await output(world, told["output_file_id"]))[0]["response"]["body"] == {"object": "response"}
    assert told["usage"]["total_tokens"] == 3


@pytest.mark.asyncio
async def test_an_answer_over_many_lines_takes_one(world: World, hand: Hand) -> None:
    id_ = await created(world, lines(1))
    lease = await hand.take()
    outcome = JobOutcome(state=JobState.COMPLETED, http_status=200)
    assert await hand.jobs.finish(lease.spec.id, hand.boot, lease.attempt, outcome, b'{\n "a":\n  1\n}\n')
    told = await when(world, id_)
    assert (await output(world, told["output_file_id"]))[0]["response"]["body"] == {"a": 1}


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_batch_is_handed_in_as_there_is_room_for_its_jobs(make_world: Any) -> None:
    world: World = await make_world(config(CONFIG + "jobs: {max_per_tenant: 3}\n"))
    await world.gateway()
    await world.known("m", "cold")
    hand = Hand(world)
    id_ = await created(world, lines(10))
    await until(hand.waiting, "some wait")
    most = 0
    async with running(world):
        while (told := await show(world, id_))["status"] in ("validating", "in_progress", "finalizing"):
            most = max(most, await hand.waiting())
    assert 1 <= most <= 3
    assert [content(e) for e in await output(world, told["output_file_id"])] == [f"TEXT {n}" for n in range(10)]


@pytest.mark.asyncio
async def test_answers_that_do_not_fit_are_told_and_the_batch_ends(make_world: Any) -> None:
    world: World = await make_world(config(CONFIG + "files: {max_bytes_per_tenant: 1MiB}\n"))
    await world.gateway()
    await world.known("m", "cold")
    hand = Hand(world)
    id_ = await created(world, lines(3))
    for _ in range(3):
        await hand.finish(await hand.take(), {"text": "x" * 900_000})
    told = await when(world, id_)
    assert told["status"] == "completed"
    kept, lost = await output(world, told["output_file_id"]), await output(world, told["error_file_id"])
    assert len(kept) + len(lost) == 3 and lost
    assert {each["error"]["code"] for each in lost} == {"files_full"}
    assert told["request_counts"] == {"total": 3, "completed": len(kept), "failed": len(lost)}


# --- bad input -------------------------------------------------------------------------------------------------------

BAD = jsonl(
    line("good"),
    b"no JSON",
    {"method": "POST", "url": CHAT, "body": {}},
    line("good"),
    {**line("get"), "method": "GET"},
    line("elsewhere", url="/v1/embeddings"),
    line("unknown", model="unknown"),
    {**line("no body"), "body": None},
    {**line("no messages"), "body": {"model": "m"}},
)
WRONG = [
    (2, "invalid_json_line", None),
    (3, "missing_required_parameter", "custom_id"),
    (4, "duplicate_custom_id", "custom_id"),
    (5, "invalid_method", "method"),
    (6, "invalid_url", "url"),
    (7, "model_not_found", "body.model"),
    (8, "invalid_value", "body"),
    (9, "invalid_request", "body.messages"),
]


@pytest.mark.asyncio
async def test_every_bad_line_is_told_by_its_number_and_nothing_runs(world: World, hand: Hand) -> None:
    told = await when(world, await created(world, BAD))
    assert told["status"] == "failed" and told["failed_at"]
    assert [(e["line"], e["code"], e["param"]) for e in told["errors"]["data"]] == WRONG
    assert all(e["message"] for e in told["errors"]["data"])
    assert (told["output_file_id"], told["request_counts"]["total"]) == (None, 0)
    assert await hand.waiting() == 0


@pytest.mark.asyncio
async def test_bad_lines_can_be_skipped(world: World) -> None:
    id_ = await created(world, BAD, invalid_lines="skip")
    async with running(world):
        told = await when(world, id_)
    assert told["status"] == "completed"
    assert told["request_counts"] == {"total": 9, "completed": 1, "failed": 8}
    assert [e["line"] for e in told["errors"]["data"]] == [number for number, *_ in WRONG]
    assert [e["custom_id"] for e in await output(world, told["output_file_id"])] == ["good"]
    written = [each["error"] for each in await output(world, told["error_file_id"])]
    assert [(e["line"], e["code"], e["param"]) for e in written] == WRONG


@pytest.mark.asyncio
@pytest.mark.parametrize(("data", "code"), [(b"", "empty_file"), (b"\n \n", "empty_file")])
async def test_a_file_without_lines_is_refused(world: World, data: bytes, code: str) -> None:
    told = await when(world, await created(world, data))
    assert (told["status"], told["errors"]["data"][0]["code"]) == ("failed", code)


@pytest.mark.asyncio
async def test_bad_requests_make_no_batch(world: World) -> None:
    for fields, status, code, param in (
        ({"input_file_id": "file-unknown"}, 404, "file_not_found", "input_file_id"),
        ({"input_file_id": 7}, 400, "invalid_request", "input_file_id"),
        ({"endpoint": "/v1/images"}, 400, "unknown_endpoint", "endpoint"),
        ({"completion_window": "soon"}, 400, "invalid_request", "completion_window"),
        ({"completion_window": "30d"}, 400, "invalid_request", "completion_window"),
        ({"metadata": {"a": 1}}, 400, "invalid_request", "metadata"),
        ({"invalid_lines": "maybe"}, 400, "invalid_request", "invalid_lines"),
    ):
        reply = await create(world, lines(1), **fields)
        assert (reply.status, reply.code, reply.json["error"]["param"]) == (status, code, param), fields
    assert (await world.post(b"{", path="/v1/batches")).code == "invalid_json"
    assert (await world.get("/v1/batches")).json["data"] == []
    assert (await world.get("/v1/batches/batch_unknown")).code == "batch_not_found"


@pytest.mark.asyncio
async def test_the_same_idempotency_key_is_the_same_batch(world: World) -> None:
    file = await uploaded(world, lines(1))
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    key = {"Idempotency-Key": "tonight"}
    first, again = [await world.post(asked, key, "/v1/batches") for _ in range(2)]
    assert first.json["id"] == again.json["id"]
    other = await world.post({**asked, "metadata": {"a": "b"}}, key, "/v1/batches")
    assert (other.status, other.code) == (409, "idempotency_conflict")


@pytest.mark.asyncio
async def test_a_key_s_batches_are_its_own_and_so_are_its_models(make_world: Any) -> None:
    def key(name: str) -> str:
        return f"{{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}, models: [m]}}"

    world: World = await make_world(config(CONFIG + f"keys:\n  - {key('alice')}\n  - {key('bob')}\n"))
    await world.gateway()
    await world.known("m", "cold")
    alice, bob = ({"Authorization": f"Bearer {name}"} for name in ("alice", "bob"))
    id_ = await created(world, jsonl(line("a", model="other")), alice)
    for path, method in (("", "GET"), ("/cancel", "POST")):
        assert (await act(world, method, f"/v1/batches/{id_}{path}", bob)).code == "batch_not_found"
    assert (await world.get("/v1/batches", bob)).json["data"] == []

    async def ended() -> Any:
        told = (await world.get(f"/v1/batches/{id_}", alice)).json
        return told if told["status"] == "failed" else None

    told = await until(ended, "it is refused")
    assert told["errors"]["data"][0]["code"] == "model_not_allowed"
    foreign = {"input_file_id": told["input_file_id"], "endpoint": CHAT}
    assert (await world.post(foreign, bob, "/v1/batches")).code == "file_not_found"


# --- ended early -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_cancelled_batch_keeps_what_was_done(world: World, hand: Hand) -> None:
    id_ = await created(world, lines(4))
    done, runs = await hand.take(), await hand.take()
    await hand.finish(done, {"choices": [{"message": {"content": "done"}}]})
    reply = await act(world, "POST", f"/v1/batches/{id_}/cancel")
    assert reply.json["status"] in ("cancelling", "cancelled")

    async def told() -> bool:
        renewed = await hand.jobs.renew(hand.boot, [(runs.spec.id, runs.attempt)])
        return renewed[runs.spec.id] == "cancel"

    await until(told, "the worker of the running line is told")
    await hand.finish(runs, b"", state=JobState.CANCELLED, http_status=0, error_code="job_cancelled")
    ended = await when(world, id_)
    assert ended["status"] == "cancelled" and ended["cancelling_at"] <= ended["cancelled_at"]
    assert ended["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
    assert [content(each) for each in await output(world, ended["output_file_id"])] == ["done"]
    errors = await output(world, ended["error_file_id"])
    assert [e["custom_id"] for e in errors] == ["line-1", "line-2", "line-3"]
    assert {e["error"]["code"] for e in errors} == {"batch_cancelled"}
    assert await hand.waiting() == 0
    again = await act(world, "POST", f"/v1/batches/{id_}/cancel")
    assert (again.status, again.code) == (409, "batch_ended")


@pytest.mark.asyncio
async def test_what_is_not_done_when_the_window_closes_expires(world: World, hand: Hand) -> None:
    id_ = await created(world, lines(3), completion_window="1s")
    await hand.finish(await hand.take(), {"choices": [{"message": {"content": "done"}}]})
    told = await when(world, id_)
    assert told["status"] == "expired" and told["expired_at"] >= told["expires_at"]
    assert told["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    assert [content(each) for each in await output(world, told["output_file_id"])] == ["done"]
    assert {e["error"]["code"] for e in await output(world, told["error_file_id"])} == {"batch_expired"}
    assert await hand.waiting() == 0


@pytest.mark.asyncio
async def test_the_input_of_a_batch_under_way_cannot_be_deleted(world: World) -> None:
    id_ = await created(world, lines(1))
    file = (await show(world, id_))["input_file_id"]
    reply = await act(world, "DELETE", f"/v1/files/{file}")
    assert (reply.status, reply.code) == (409, "file_in_use")
    async with running(world):
        await when(world, id_)
    assert (await act(world, "DELETE", f"/v1/files/{file}")).status == 200


@pytest.mark.asyncio
async def test_batches_are_listed_newest_first_in_pages(world: World) -> None:
    ids = []

    def later(than_ms: int) -> bool:
        return world.gateways[0].view.now_ms() > than_ms

    for _ in range(3):
        ids.append(await created(world, lines(1)))
        made_ms = world.gateways[0].view.now_ms()
        await until(partial(later, made_ms), "the clock has moved on")
    first = (await world.get("/v1/batches?limit=2")).json
    assert [b["id"] for b in first["data"]] == ids[:0:-1] and first["has_more"]
    second = (await world.get(f"/v1/batches?limit=2&after={first['last_id']}")).json
    assert [b["id"] for b in second["data"]] == ids[:1] and not second["has_more"]
    assert (await world.get(f"/v1/batches?after={ids[0]}")).json["data"] == []
    unknown = await world.get("/v1/batches?after=batch_nope")
    assert (unknown.status, unknown.code, unknown.json["error"]["param"]) == (404, "batch_not_found", "after")
