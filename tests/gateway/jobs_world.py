"""A worker's hand on the jobs of a test's fleet, and a client of the jobs API."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fleet import Jobs
from rewarm.ids import grant_id
from rewarm.jobs import JobLease, JobOutcome, JobState
from tests.gateway.world import Reply, World, chat, until

_claims = itertools.count()


class Hand:
    """Runs jobs as a worker does, one step at a time."""

    def __init__(self, world: World, boot: str = "boot-1") -> None:
        self.world = world
        self.boot = boot
        self.jobs = Jobs(world.client)
        self.seq = 0

    async def take(self, model: str = "m") -> JobLease:
        """The next job of the model; it must be there."""
        lease = await until(lambda: self.try_take(model), "a job waits")
        assert isinstance(lease, JobLease)
        return lease

    async def try_take(self, model: str = "m") -> JobLease | None:
        claimed = await self.world.queue.claim(
            model,
            "w",
            f"{model}-1",
            "unix:/x",
            [grant_id()],
            request_id=f"c{next(_claims)}",
            max_jobs=1,
            boot=self.boot,
        )
        self.seq = 0
        return claimed.jobs[0] if claimed.jobs else None

    async def say(self, lease: JobLease, *words: str) -> None:
        """One chunk with an event for each word."""
        self.seq += 1
        data = "".join(f"data: {json.dumps({'word': word})}\n\n" for word in words).encode()
        assert await self.jobs.chunk(lease.spec.id, self.boot, lease.attempt, self.seq, data, tokens=self.seq)

    async def finish(self, lease: JobLease, result: Any = None, **outcome: Any) -> None:
        told = {"state": JobState.COMPLETED, "http_status": 200, "tokens": self.seq, **outcome}
        data = json.dumps({"answer": 42} if result is None else result).encode() if result != b"" else b""
        assert await self.jobs.finish(lease.spec.id, self.boot, lease.attempt, JobOutcome(**told), data)

    async def lose(self, lease: JobLease, *, spent: bool = True, reason: str = "the engine died") -> None:
        assert await self.jobs.requeue(lease.spec.id, self.boot, lease.attempt, spent=spent, reason=reason)

    async def waiting(self, model: str = "m") -> int:
        return (await self.world.queue.waiting([model]))[model].jobs


async def submit(world: World, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return await world.post(chat(**fields), headers, "/v1/jobs")


async def submitted(world: World, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """The id of a new job."""
    answer = await submit(world, headers, **fields)
    assert answer.status == 202, answer.body
    id_: str = answer.json["id"]
    return id_


async def act(world: World, method: str, path: str, headers: dict[str, str] | None = None) -> Reply:
    async with world.http.request(method, world.base + path, headers=headers or {}) as answer:
        return Reply(answer.status, answer.headers, await answer.read())


async def cancel(world: World, id_: str, headers: dict[str, str] | None = None) -> Reply:
    return await act(world, "POST", f"/v1/jobs/{id_}/cancel", headers)


@dataclass
class Sse:
    """One event as a browser's EventSource would deliver it."""

    event: str = "message"
    id: str | None = None
    data: list[str] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads("\n".join(self.data))


@asynccontextmanager
async def events(
    world: World, id_: str, last: str | None = None, headers: dict[str, str] | None = None
) -> AsyncIterator[AsyncIterator[Sse]]:
    """Follow a job. Leaving the block cuts the connection."""
    sent = dict(headers or {})
    if last is not None:
        sent["Last-Event-ID"] = last
    answer = await world.http.get(f"{world.base}/v1/jobs/{id_}/events", headers=sent)
    try:
        assert answer.status == 200, await answer.read()
        assert answer.headers["Content-Type"].startswith("text/event-stream")

        async def parsed() -> AsyncIterator[Sse]:
            one = Sse()
            async for raw in answer.content:
                name, _, value = raw.decode().rstrip("\n").partition(": ")
                if name == "" and value == "":
                    if one.data:
                        yield one
                    one = Sse()
                elif name == "data":
                    one.data.append(value)
                elif name == "event":
                    one.event = value
                elif name == "id":
                    one.id = value
                else:
                    assert name == "", f"{raw!r} is no line of an event stream"

        yield parsed()
    finally:
        answer.close()
