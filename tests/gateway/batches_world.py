"""Batches as a client makes them, and a hand that runs their lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from rewarm.jobs import JobState
from tests.gateway.jobs_world import Hand
from tests.gateway.test_files import uploaded
from tests.gateway.world import Reply, World, until

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, text: str = "Hi", *, model: str = "m", url: str = CHAT, **body: Any) -> dict[str, Any]:
    asked = {"model": model, "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def jsonl(*lines: dict[str, Any] | bytes) -> bytes:
    return b"".join((each if isinstance(each, bytes) else json.dumps(each).encode()) + b"\n" for each in lines)


def lines(count: int) -> bytes:
    return jsonl(*(line(f"line-{n}", f"text {n}") for n in range(count)))


def answer(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"id": "e", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}


async def create(world: World, data: bytes, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    file = await uploaded(world, data, headers)
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **fields}
    return await world.post(asked, headers, "/v1/batches")


async def created(world: World, data: bytes, headers: dict[str, str] | None = None, **fields: Any) -> str:
    reply = await create(world, data, headers, **fields)
    assert reply.status == 200, reply.body
    assert reply.json["status"] == "validating"
    id_: str = reply.json["id"]
    return id_


async def show(world: World, id_: str) -> dict[str, Any]:
    reply = await world.get(f"/v1/batches/{id_}")
    assert reply.status == 200, reply.body
    told: dict[str, Any] = reply.json
    return told


async def when(world: World, id_: str, *states: str, within_s: float = 20.0) -> dict[str, Any]:
    """The batch once it is in one of ``states``, by default one of the last."""

    async def there() -> dict[str, Any] | None:
        told = await show(world, id_)
        return told if told["status"] in (states or ENDED) else None

    told: dict[str, Any] = await until(there, f"{id_} is {states or 'ended'}", within_s)
    return told


async def output(world: World, file: str | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    reply = await world.get(f"/v1/files/{file}/content")
    assert reply.status == 200, reply.body
    return [json.loads(each) for each in reply.body.splitlines()]


Say = Callable[[dict[str, Any]], dict[str, Any]]


@asynccontextmanager
async def running(world: World, *, model: str = "m", ran: list[str] | None = None) -> AsyncIterator[None]:
    """All jobs are run while this lasts: the answer is the question, loudly. ``ran`` gets each question.

    A question that says "fail" is refused by the engine, one that says "die" kills it.
    """
    hand = Hand(world)

    async def work() -> None:
        while True:
            lease = await hand.try_take(model)
            if lease is None:
                await asyncio.sleep(0.005)
                continue
            body = json.loads(await hand.jobs.body(lease.spec.id) or b"{}")
            text = body["messages"][0]["content"]
            if ran is not None:
                ran.append(text)
            if "fail" in text:
                error = {"error": {"message": "no", "code": "refused"}}
                told: dict[str, Any] = {"error_code": "refused", "error_message": "no", "http_status": 400}
                await hand.finish(lease, error, state=JobState.FAILED, **told)
            elif "die" in text:
                told = {"error_code": "worker_died", "error_message": "it died", "http_status": 502}
                await hand.finish(lease, b"", state=JobState.FAILED, **told)
            else:
                usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
                await hand.finish(lease, answer(text.upper()), usage=usage)

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
