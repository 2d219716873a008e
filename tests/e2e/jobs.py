"""Jobs on a whole fleet: submitted, watched to their end, and what must be true of every history."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import psutil

from fleet import JOB_BANDS, Chunk, FleetClient, Jobs
from fleet.leaks import find_leaks
from rewarm.errors import QueueUnavailable
from rewarm.jobs import TERMINAL, JobSpec, JobState
from rewarm.paths import Paths
from tests.e2e.stack import Process, Stack, lives, post, until
from tests.redis_server import patience

CHAT = "/v1/chat/completions"


@dataclass
class History:
    """What was seen of one job. ``states`` without repeats."""

    states: list[JobState] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)


@dataclass
class Watched:
    """``await`` conditions on it with ``until``."""

    client: FleetClient
    jobs: Jobs
    histories: dict[str, History] = field(default_factory=dict)

    def count(self, state: JobState) -> int:
        return sum(bool(h.states) and h.states[-1] is state for h in self.histories.values())

    @property
    def ended(self) -> int:
        return sum(bool(h.states) and h.states[-1] in TERMINAL for h in self.histories.values())

    async def submit(self, id_: str, body: dict[str, Any], *, model: str = "m", **spec: Any) -> None:
        fields = {"path": CHAT, "band": JOB_BANDS["normal"], **spec}
        wanted = JobSpec(id=id_, tenant="t", model=model, asked_model=model, **fields)
        await self.jobs.submit(wanted, json.dumps({"model": model, "user": id_, **body}).encode())
        self.histories[id_] = History()

    async def order(self, url: str, key: str, body: dict[str, Any], *, model: str = "m") -> str:
        """Through the gateway, again and again under one key until it has answered; the job's id."""
        out: list[str] = []

        async def accepted() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                order = {"model": model, "user": key, **body}
                status, job, _ = await post(url, order, {"Idempotency-Key": key}, path="/v1/jobs")
                assert status in (200, 202, 503), job  # 503: it cannot reach Redis
                if status != 503:
                    out.append(job["id"])
            return bool(out)

        await until(accepted, f"{key} is accepted", 60, every_s=0.05)
        self.histories.setdefault(out[0], History())
        return out[0]

    async def look(self) -> None:
        """One reading of every job; what ended must stay as it is."""
        names = list(self.histories)
        for id_, job in zip(names, await self.jobs.get_many(names), strict=True):
            assert job is not None, f"{id_} is gone"
            history = self.histories[id_]
            if not history.states or history.states[-1] is not job.state:
                assert not (history.states and history.states[-1] in TERMINAL), f"{id_}: {history.states} → {job.state}"
                history.states.append(job.state)
            if job.attempt and (not history.attempts or history.attempts[-1] != job.attempt):
                history.attempts.append(job.attempt)

    async def watch(self) -> None:
        """Until cancelled; while Redis is away it just does not see."""
        while True:
            with contextlib.suppress(QueueUnavailable):
                await self.look()
            await asyncio.sleep(0.05)

    async def text(self, id_: str) -> str:
        raw = await self.jobs.result(id_)
        assert raw is not None, f"{id_} has no result"
        content = json.loads(raw)["choices"][0]["message"]["content"]
        assert isinstance(content, str)
        return content

    async def check(self, id_: str) -> str:
        """The history of a completed job holds; its text."""
        history = self.histories[id_]
        assert history.states[-1] is JobState.COMPLETED, (id_, history)
        assert sum(state in TERMINAL for state in history.states) == 1, (id_, history)
        assert history.attempts == sorted(set(history.attempts)), (id_, history)
        job = await self.jobs.get(id_)
        assert job is not None
        chunks = [chunk for chunk in await self.jobs.events(id_) if not chunk.end]
        check_chunks(id_, chunks)
        text = await self.text(id_)
        assert streamed([c for c in chunks if c.attempt == job.attempt]) == text, id_
        return text


def check_chunks(id_: str, chunks: Sequence[Chunk]) -> None:
    """Attempts follow each other and never mix; within one, no piece is missing and none comes twice."""
    attempts = [chunk.attempt for chunk in chunks]
    assert attempts == sorted(attempts), (id_, attempts)
    for attempt in set(attempts):
        numbers = [chunk.seq for chunk in chunks if chunk.attempt == attempt]
        assert numbers == list(range(1, len(numbers) + 1)), (id_, attempt, numbers)


def streamed(chunks: Sequence[Chunk]) -> str:
    """The text in the chunks' events."""
    lines = b"".join(chunk.data for chunk in chunks).decode().split("\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])


@asynccontextmanager
async def watching(stack: Stack, url: str = "") -> AsyncIterator[Watched]:
    """``url``: the fleet's Redis; by default the stack's, else the private one of ``rewarm serve``."""
    url = url or stack.redis_url or f"unix://{Paths.at(stack.folder / 'state-serve').redis_socket}"
    with patience():
        client = await FleetClient.connect(url, stack.fleet, check=False)
    watched = Watched(client, Jobs(client))
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(watched.watch())
            yield watched
            task.cancel()
    finally:
        await watched.jobs.close()
        await client.close()


async def no_leaks(client: FleetClient) -> None:
    """Every key has an end of its own, and all places agree, as soon as nobody is in the middle of a change."""
    found: list[str] = []

    async def none() -> bool:
        found[:] = await find_leaks(client)
        return not found

    try:
        await until(none, "no key without an end", 20, every_s=0.3)
    except AssertionError:
        raise AssertionError(f"keys without an end: {found}") from None


def child(serve: Process, word: str) -> psutil.Process:
    """A child of ``rewarm serve``: gateway, worker or redis-server, which renames itself."""
    children = [p for p in psutil.Process(serve.pid).children() if lives(p)]
    found = [p for p in children if word in (p.name(), *p.cmdline())]
    assert len(found) == 1, (word, found)
    return found[0]


async def restarted(serve: Process, word: str, before: psutil.Process) -> None:
    def there() -> bool:
        with contextlib.suppress(AssertionError, psutil.Error):
            return child(serve, word).pid != before.pid
        return False

    await until(there, f"{word} is started again", 30)
