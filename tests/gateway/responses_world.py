"""A response in the background from both ends: what an engine says of one, and a client that follows it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.openai.numbering import events_in
from rewarm.jobs import JobLease
from tests.gateway.jobs_world import Hand
from tests.gateway.world import Reply, World

RECORDED = (Path(__file__).parent / "recorded" / "vllm_0_32_responses.txt").read_bytes()
"""What vLLM 0.32 sent for "Say hi" with ``max_output_tokens: 8``, byte for byte."""

SAID = "Hello there, welcome to my world!"


def recorded() -> list[bytes]:
    """One event each, the last one included."""
    return [event + b"\n\n" for event in RECORDED.split(b"\n\n") if event.strip()]


def answer() -> dict[str, Any]:
    """The Response that the recording ends with."""
    (last,) = events_in(recorded()[-1])
    response: dict[str, Any] = last["response"]
    return response


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "Say hi", "background": True, **fields}


async def create(world: World, headers: dict[str, str] | None = None, **fields: Any) -> Reply:
    return await world.post(body(**fields), headers, "/v1/responses")


async def created(world: World, headers: dict[str, str] | None = None, **fields: Any) -> str:
    reply = await create(world, headers, **fields)
    assert reply.status == 200, reply.body
    id_: str = reply.json["id"]
    return id_


async def say(hand: Hand, lease: JobLease, *events: bytes) -> None:
    """A chunk of the engine's events."""
    hand.seq += 1
    data = b"".join(events)
    assert await hand.jobs.chunk(lease.spec.id, hand.boot, lease.attempt, hand.seq, data, tokens=hand.seq)


async def finish(hand: Hand, lease: JobLease, **outcome: Any) -> None:
    await hand.finish(lease, answer(), usage=answer()["usage"], **outcome)


class Follower:
    """``seen`` are the events so far."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self.seen: list[dict[str, Any]] = []
        self.comments: list[str] = []
        self._lines = lines

    async def next(self) -> dict[str, Any] | None:
        """None at the end of the stream."""
        name = ""
        async for raw in self._lines:
            line = raw.decode().rstrip("\n")
            if line.startswith(":"):
                self.comments.append(line)
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                event: dict[str, Any] = json.loads(line[6:])
                assert event["type"] == name
                self.seen.append(event)
                return event
        return None

    async def until(self, kind: str) -> dict[str, Any]:
        while (event := await self.next()) is not None:
            if event["type"] == kind:
                return event
        raise AssertionError(f"the stream ended without {kind}: {[e['type'] for e in self.seen]}")

    async def rest(self) -> list[dict[str, Any]]:
        while await self.next() is not None:
            pass
        return self.seen

    @property
    def numbers(self) -> list[int]:
        return [event["sequence_number"] for event in self.seen]

    @property
    def text(self) -> str:
        return "".join(e["delta"] for e in self.seen if e["type"] == "response.output_text.delta")


@asynccontextmanager
async def follow(world: World, id_: str, after: int | None = None, base: str = "") -> AsyncIterator[Follower]:
    """Leaving the block cuts the connection."""
    query = "stream=true" + ("" if after is None else f"&starting_after={after}")
    answer = await world.http.get(f"{base or world.base}/v1/responses/{id_}?{query}")
    try:
        assert answer.status == 200, await answer.read()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield Follower(aiter(answer.content))
    finally:
        answer.close()
