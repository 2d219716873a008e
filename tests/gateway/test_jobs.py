"""``/v1/jobs``: hand a request in, look at it, read its result, cancel it. The worker's part is played by hand."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest

from gateway.webhooks import Secret
from rewarm.errors import QueueUnavailable
from rewarm.jobs import JobOutcome, JobState
from rewarm.states import ReplicaState
from tests.gateway.jobs_world import Hand, act, cancel, submit, submitted
from tests.gateway.world import CONFIG, World, chat, config, until
from tests.redis_server import LocalRedis

pytestmark = pytest.mark.redis


@pytest.fixture
def hand(world: World) -> Hand:
    return Hand(world)


async def show(world: World, id_: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = await world.get(f"/v1/jobs/{id_}", headers)
    assert answer.status == 200, answer.body
    told: dict[str, Any] = answer.json
    return told


# --- the way of a job ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_job_from_submission_to_its_result(world: World, hand: Hand) -> None:
    answer = await submit(world, model="alias", priority="low", metadata={"night": "shift"}, temperature=0)
    told = answer.json
    assert (answer.status, told["object"], told["status"], told["queue_position"]) == (202, "job", "queued", 0)
    assert answer.headers["Location"] == told["status_url"] == f"/v1/jobs/{told['id']}"
    assert told["progress"]["phase"] == "cold"
    assert 1 <= int(answer.headers["Retry-After"]) <= 8

    await world.loading("m", phase=ReplicaState.RESTORING, fraction=0.4, eta_s=8.0)
    await world.known("m", "loading")
    loading = await show(world, told["id"])
    assert loading["status"] == "loading"
    assert (loading["progress"]["phase"], loading["progress"]["fraction"]) == ("restoring", 0.4)
    assert loading["progress"]["eta_s"] == 8.0
    assert loading["created_at"] == told["created_at"]

    lease = await hand.take()
    assert lease.spec.model == "m" and lease.spec.asked_model == "alias"
    assert lease.spec.priority == "low" and lease.spec.metadata == {"night": "shift"}
    body = await hand.jobs.body(told["id"])
    assert body is not None and json.loads(body) == chat("alias", temperature=0), "the job's own fields are taken out"
    await hand.say(lease, "Hello")
    running = await show(world, told["id"])
    assert (running["status"], running["tokens"], running["attempt"]) == ("in_progress", 1, 1)
    assert running["progress"]["fraction"] == 1.0 and running["queue_position"] is None
    assert (await world.get(told["result_url"])).code == "job_not_finished"

    await hand.finish(lease, {"choices": ["…"]}, usage={"total_tokens": 3})
    ended = await world.get(told["status_url"])
    assert (ended.json["status"], ended.json["usage"], ended.json["progress"]) == (
        "completed",
        {"total_tokens": 3},
        None,
    )
    assert "Retry-After" not in ended.headers
    assert ended.json["expires_at"] - ended.json["ended_at"] == pytest.approx(7 * 86400, abs=1)
    result = await world.get(told["result_url"])
    assert (result.status, result.json) == (200, {"choices": ["…"]})


@pytest.mark.asyncio
async def test_handing_in_wakes_the_model_and_looking_does_not(world: World) -> None:
    async def demand() -> float:
        return float((await world.registry.snapshot()).demand_ms.get("m", 0))

    await world.get("/v1/jobs")
    await world.get("/v1/jobs/job_none")
    assert await demand() == 0
    id_ = await submitted(world)
    woken = await demand()
    assert woken > 0
    for path in ("", "/result"):
        await world.get(f"/v1/jobs/{id_}{path}")
    await cancel(world, id_)
    await world.get("/v1/jobs")
    assert await demand() == woken


@pytest.mark.asyncio
async def test_the_same_key_and_body_is_the_same_job(world: World, hand: Hand) -> None:
    key = {"Idempotency-Key": "tonight-1"}
    id_ = await submitted(world, key)
    assert (await submit(world, key)).json["id"] == id_
    assert await hand.waiting() == 1
    other = await submit(world, key, temperature=1)
    assert (other.status, other.code) == (409, "idempotency_conflict")
    await hand.finish(await hand.take())
    again = await submit(world, key)
    assert (again.status, again.json["id"], again.json["status"]) == (200, id_, "completed")
    assert await submitted(world) != id_, "without a key each one is new"


@pytest.mark.asyncio
async def test_prefer_wait_answers_with_the_result_if_it_ends_in_time(world: World, hand: Hand) -> None:
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(submit(world, {"Prefer": "wait=30"}))
        await hand.finish(await hand.take(), {"text": "done"})
    answer = waits.result()
    assert (answer.status, answer.headers["Preference-Applied"]) == (200, "wait=30")
    assert (answer.json["status"], answer.json["result"]) == ("completed", {"text": "done"})
    late = await submit(world, {"Prefer": "wait=0"})
    assert (late.status, late.json["status"], late.headers["Preference-Applied"]) == (202, "queued", "wait=0")
    async with asyncio.TaskGroup() as group:
        looks = group.create_task(world.get(late.json["status_url"], {"Prefer": "wait=30"}))
        await hand.finish(await hand.take())
    assert looks.result().json["status"] == "completed"


@pytest.mark.asyncio
async def test_a_client_that_waits_is_let_go_when_the_gateway_stops(world: World, hand: Hand) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waits = group.create_task(submit(world, {"Prefer": "wait=60"}))
        await until(hand.waiting, "the job is in the queue")
        world.gateways[0].drain.begin()
    assert (waits.result().status, waits.result().json["status"]) == (202, "queued")


@pytest.mark.asyncio
async def test_an_engine_s_answer_that_is_no_json_is_told_as_an_error_and_never_spliced(
    world: World, hand: Hand
) -> None:
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(submit(world, {"Prefer": "wait=30"}))
        lease = await hand.take()
        outcome = JobOutcome(
            state=JobState.FAILED, http_status=404, error_code="engine_error", error_message="404: Not Found"
        )
        assert await hand.jobs.finish(lease.spec.id, hand.boot, lease.attempt, outcome, b"404: Not Found")
    told = waits.result().json
    assert (told["status"], told["result"], told["error"]["code"]) == ("failed", None, "engine_error")
    result = await world.get(told["result_url"])
    assert (result.status, result.code) == (404, "engine_error")
    assert result.json["error"]["message"] == "404: Not Found"
    assert result.headers["Content-Type"] == "application/json"

    id_ = await submitted(world)
    lease = await hand.take()
    outcome = JobOutcome(state=JobState.COMPLETED, http_status=200)
    assert await hand.jobs.finish(id_, hand.boot, lease.attempt, outcome, b"<html>")
    page = await world.get(f"/v1/jobs/{id_}/result")
    assert (page.status, page.code) == (502, "engine_bad_response")


# --- how it may end --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_result_of_a_job_that_the_engine_refused_is_the_engine_s_own_error(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    said = {"error": {"message": "too long a prompt", "code": "context_length_exceeded"}}
    await hand.finish(
        await hand.take(),
        said,
        state=JobState.FAILED,
        http_status=400,
        error_code="context_length_exceeded",
        error_message="too long a prompt",
    )
    result = await world.get(f"/v1/jobs/{id_}/result")
    assert (result.status, result.json) == (400, said)
    told = await show(world, id_)
    assert (told["status"], told["http_status"]) == ("failed", 400)
    assert told["error"]["code"] == "context_length_exceeded"
    assert told["error"]["type"] == "invalid_request_error"


@pytest.mark.asyncio
async def test_a_job_that_kills_its_worker_again_and_again_fails_with_the_last_reason(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    for n in range(3):
        await hand.lose(await hand.take(), reason=f"death {n}")
    result = await world.get(f"/v1/jobs/{id_}/result")
    assert (result.status, result.code) == (500, "job_attempts_exhausted")
    assert "death 2" in result.json["error"]["message"]
    assert result.headers["x-should-retry"] == "false"


@pytest.mark.asyncio
async def test_cancelling_is_idempotent(world: World, hand: Hand) -> None:
    id_ = await submitted(world)
    answers = [await cancel(world, id_) for _ in range(2)]
    assert [(a.status, a.json["status"]) for a in answers] == [(200, "cancelled")] * 2
    assert await hand.waiting() == 0
    result = await world.get(f"/v1/jobs/{id_}/result")
    assert (result.status, result.code) == (410, "job_cancelled")

    id_ = await submitted(world)
    lease = await hand.take()
    for _ in range(2):
        told = (await cancel(world, id_)).json
        assert (told["status"], told["cancel_requested"]) == ("in_progress", True)
    assert await hand.jobs.renew(hand.boot, [(id_, lease.attempt)]) == {id_: "cancel"}
    await hand.finish(lease, b"", state=JobState.CANCELLED, http_status=499)
    assert (await cancel(world, id_)).json["status"] == "cancelled"

    id_ = await submitted(world)
    await hand.finish(await hand.take())
    assert (await cancel(world, id_)).json["status"] == "completed", "too late: it stays what it is"


@pytest.mark.asyncio
async def test_a_job_that_was_not_started_in_time_expires(world: World, hand: Hand) -> None:
    id_ = await submitted(world, start_deadline_s=60)
    assert (await show(world, id_))["start_deadline_at"] is not None
    world.client.scripts.clock_offset_ms = 61_000
    assert await hand.jobs.expire() == 1
    world.client.scripts.clock_offset_ms = 0
    told = await show(world, id_)
    assert (told["status"], told["error"]["code"]) == ("expired", "job_expired")
    assert (await world.get(f"/v1/jobs/{id_}/result")).status == 410


# --- who sees what ---------------------------------------------------------------------------------------------------

KEYS = "keys:\n" + "".join(
    f"- {{name: {name}, sha256: {hashlib.sha256(f'sk-{name}'.encode()).hexdigest()}, {more}}}\n"
    for name, more in (
        ("alice", "concurrency: 1"),
        ("bob", "models: [other], job_priority: low"),
        ("root", "operator: true, priority: high"),
    )
)


def of(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}"}


async def with_keys(make_world: Any) -> World:
    world: World = await make_world(config(CONFIG + KEYS))
    await world.gateway(operator_token="the token")
    await world.known("m", "cold")
    return world


@pytest.mark.asyncio
async def test_a_key_sees_its_own_jobs_and_an_operator_all(make_world: Any) -> None:
    world = await with_keys(make_world)
    id_ = await submitted(world, of("alice"))
    for method, path in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("POST", "/cancel")):
        foreign = await act(world, method, f"/v1/jobs/{id_}{path}", of("bob"))
        unknown = await act(world, method, f"/v1/jobs/job_x{path}", of("bob"))
        assert (foreign.status, foreign.code) == (unknown.status, unknown.code) == (404, "job_not_found")
        assert foreign.body.replace(id_.encode(), b"job_x") == unknown.body, "nothing tells that it exists"
        assert (await act(world, method, f"/v1/jobs/{id_}{path}")).status == 401
    assert (await world.get("/v1/jobs", of("bob"))).json["data"] == []
    assert (await world.get("/v1/jobs?tenant=alice", of("bob"))).status == 404
    for reader in (of("root"), {"X-Rewarm-Operator": "the token"}):
        assert (await show(world, id_, reader))["id"] == id_
        assert [job["id"] for job in (await world.get("/v1/jobs?tenant=alice", reader)).json["data"]] == [id_]
    assert (await cancel(world, id_, of("root"))).json["status"] == "cancelled"


@pytest.mark.asyncio
async def test_the_limits_of_a_key_hold_for_its_jobs(make_world: Any) -> None:
    world = await with_keys(make_world)
    hand = Hand(world)
    assert (await submit(world, of("bob"))).code == "model_not_allowed"
    refused = await submit(world, of("bob"), model="other", priority="normal")
    assert (refused.status, refused.json["error"]["param"]) == (400, "priority")
    assert (await submit(world, of("bob"), model="other")).json["priority"] == "low"
    assert (await submit(world, of("root"))).json["priority"] == "high", "a job has its key's priority"
    assert (await submit(world, of("alice"))).json["priority"] == "normal"
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(submit(world, {**of("alice"), "Prefer": "wait=30"}))
        await until(lambda: world.gateways[0].keys.identify(of("alice")).active, "the request waits")
        assert (await submit(world, of("alice"))).code == "rate_limit_exceeded"
        for _ in range(3):
            await hand.finish(await hand.take())
    assert waits.result().status == 200


@pytest.mark.asyncio
async def test_the_list_is_newest_first_in_pages(world: World, hand: Hand) -> None:
    ids = [await submitted(world, n=n) for n in range(5)]
    first = (await world.get("/v1/jobs?limit=2")).json
    assert (first["object"], first["has_more"], first["last_id"]) == ("list", True, first["data"][-1]["id"])
    second = (await world.get(f"/v1/jobs?limit=3&after={first['last_id']}")).json
    assert not second["has_more"]
    found = [*first["data"], *second["data"]]
    assert sorted(job["id"] for job in found) == sorted(ids)
    times = [job["created_at"] for job in found]
    assert times == sorted(times, reverse=True)
    await hand.finish(await hand.take())
    completed = (await world.get("/v1/jobs?status=completed")).json
    assert len(completed["data"]) == 1 and completed["data"][0]["status"] == "completed"
    last = await world.get(f"/v1/jobs?after={second['last_id']}")
    assert (last.status, last.json["data"], last.json["has_more"]) == (200, [], False), "after the last there is none"
    unknown = await world.get("/v1/jobs?after=job_nope")
    assert (unknown.status, unknown.code, unknown.json["error"]["param"]) == (404, "job_not_found", "after")
    bad = await world.get("/v1/jobs?status=done")
    assert (bad.status, bad.json["error"]["param"]) == (400, "status")


# --- bad input -------------------------------------------------------------------------------------------------------

SMALL = CONFIG + "jobs: {max_body: 2KiB, max_per_tenant: 2}\n"


@pytest.mark.asyncio
async def test_what_is_refused_leaves_nothing_behind(make_world: Any) -> None:
    world: World = await make_world(config(SMALL))
    await world.gateway(webhook_secrets={"default": Secret.parse("whsec_" + "c2VjcmV0" * 5)})
    await world.known("m", "cold")
    hand = Hand(world)
    answers = [
        await submit(world, endpoint="/v1/images/generations"),
        await submit(world, user="x" * 3000),
        await submit(world, user="x" * 100_000),
        await submit(world, model="nobody"),
        await world.post(b"{", path="/v1/jobs"),
        await submit(world, {"Idempotency-Key": "x" * 300}),
        await submit(world, webhook="http://127.0.0.1/hook"),
        await submit(world, webhook={"url": "https://example.com", "secret_id": "nobody's"}),
        await submit(world, priority="now"),
    ]
    assert [(a.status, a.code) for a in answers] == [
        (400, "unknown_endpoint"),
        (413, "job_body_too_large"),
        (413, "job_body_too_large"),
        (404, "model_not_found"),
        (400, "invalid_json"),
        (400, "invalid_header"),
        (400, "webhook_refused"),
        (400, "webhook_refused"),
        (400, "invalid_request"),
    ]
    assert (await world.get("/v1/jobs")).json["data"] == []
    assert await hand.waiting() == 0
    for _ in range(2):
        await submitted(world)
    full = await submit(world)
    assert (full.status, full.code) == (429, "job_quota_exceeded")
    assert await hand.waiting() == 2


@pytest.mark.asyncio
async def test_a_full_redis_takes_no_job_and_what_it_has_can_still_be_read(own_redis: LocalRedis) -> None:
    async with World(own_redis.url, "full", config()) as world:
        await world.gateway()
        await world.known("m", "cold")
        id_ = await submitted(world)
        await world.client.call("CONFIG", "SET", "maxmemory", "1mb")
        key = {"Idempotency-Key": "later"}
        full = await submit(world, key, user="x" * 100_000)
        assert (full.status, full.code) == (503, "jobs_full")
        assert (await show(world, id_))["status"] == "queued"
        await world.client.call("CONFIG", "SET", "maxmemory", "0")
        assert [job["id"] for job in (await world.get("/v1/jobs")).json["data"]] == [id_]
        assert (await submit(world, key, user="now")).status == 202, "the key was not taken by what was refused"


@pytest.mark.asyncio
async def test_without_redis_there_are_no_jobs_and_the_answer_says_so_at_once(own_redis: LocalRedis) -> None:
    async with World(own_redis.url, "gone", config()) as world:
        await world.gateway()
        await world.known("m", "cold")
        id_ = await submitted(world)
        own_redis.kill()
        for answer in (await submit(world), await world.get(f"/v1/jobs/{id_}"), await cancel(world, id_)):
            assert (answer.status, answer.code) == (503, "queue_unavailable")


@pytest.mark.asyncio
async def test_a_job_that_redis_took_is_told_of_even_if_redis_is_silent_then(
    world: World, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object, **__: object) -> None:
        raise QueueUnavailable("no answer")

    monkeypatch.setattr(world.gateways[0].jobs.jobs, "get_many", silent)
    answer = await submit(world)
    assert (answer.status, answer.json["status"]) == (202, "queued")
    assert (await hand.take()).spec.id == answer.json["id"]


@pytest.mark.asyncio
async def test_waiting_jobs_are_counted(world: World) -> None:
    await submitted(world)
    await until(lambda: world.gateways[0].view.fleet.waiting["m"].jobs == 1, "the view counts it")
    assert (await world.get("/v1/models/m")).json["rewarm"]["jobs_waiting"] == 1
    assert b'rewarm_jobs_waiting{model="m"} 1.0' in (await world.get("/metrics")).body


@pytest.mark.asyncio
async def test_paths_and_methods(world: World) -> None:
    id_ = await submitted(world)
    for method, path, allowed in (
        ("DELETE", "/v1/jobs", "POST, GET"),
        ("DELETE", f"/v1/jobs/{id_}", "GET"),
        ("GET", f"/v1/jobs/{id_}/cancel", "POST"),
        ("POST", f"/v1/jobs/{id_}/events", "GET"),
    ):
        answer = await act(world, method, path)
        assert (answer.status, answer.code, answer.headers["Allow"]) == (405, "method_not_allowed", allowed)
    assert (await world.get(f"/v1/jobs/{id_}/nothing")).code == "not_found"
    assert (await act(world, "HEAD", f"/v1/jobs/{id_}")).status == 200
    assert (await act(world, "HEAD", f"/v1/jobs/{id_}/events")).status == 200


@pytest.mark.asyncio
async def test_any_openai_endpoint_can_be_a_job(world: World, hand: Hand) -> None:
    for path, field in (("/v1/completions", "prompt"), ("/v1/embeddings", "input"), ("/v1/responses", "input")):
        answer = await world.post({"model": "m", field: "Hi", "endpoint": path}, path="/v1/jobs")
        assert (answer.status, answer.json["endpoint"]) == (202, path)
        assert (await hand.take()).spec.path == path
