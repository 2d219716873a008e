"""Short names for what the tests of the queue do all the time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from fleet import Claimed, Enqueued, FleetClient, Queue
from rewarm.messages import GatewayEvent, ReplicaSpec, Ticket, decode_gateway_event

_requests = itertools.count()


def ticket(id_: str, **fields: Any) -> Ticket:
    return Ticket(**{"model": "m", "tenant": "A", "gateway": "gw-1", "band": 1, **fields, "id": id_})


async def enqueue(queue: Queue, id_: str, *, max_waiting: int = 1000, **fields: Any) -> Enqueued:
    return await queue.enqueue(ticket(id_, **fields), max_waiting=max_waiting)


async def claim(queue: Queue, count: int = 1, *, model: str = "m", request_id: str | None = None) -> Claimed:
    request = request_id or f"request-{next(_requests)}"
    offers = [f"grant-{request}-{i}" for i in range(count)]
    return await queue.claim(model, "worker", "replica", "unix:/gate.sock", offers, request_id=request)


def tickets(claimed: Claimed) -> list[str]:
    return [grant.ticket for grant in claimed.grants]


async def events(client: FleetClient, gateway: str = "gw-1") -> list[GatewayEvent]:
    """Everything on a gateway's stream so far."""
    entries = await client.call("XRANGE", client.keys.grants(gateway), "-", "+")
    return [decode_gateway_event(fields[b"e"]) for _, fields in entries]


async def advance(client: FleetClient, seconds: float) -> None:
    """Time passes for the scripts, while the fleet shows its usual signs of life: nobody takes it for an outage."""
    client.scripts.clock_offset_ms += int(seconds * 1000)
    await client.call("HSET", client.keys.pulse, "at", await client.time_ms())


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)


def spec(model: str = "m") -> ReplicaSpec:
    return ReplicaSpec(model=model, engine="vllm", served_names=(model,), slots=2)


def ids(count: int, prefix: str = "t") -> Sequence[str]:
    return [f"{prefix}{i:04d}" for i in range(count)]


async def forget_fleet(client: FleetClient) -> None:
    keys = [key async for key in client.redis.scan_iter(match=f"{client.keys.prefix}*", count=1000)]
    if keys:
        await client.redis.delete(*keys)
