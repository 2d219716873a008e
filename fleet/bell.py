"""Hints: something changed, look again. One blocking read per process, of the bell and of a gateway's own stream.

The bell carries no work. A hint that is lost, because the stream was trimmed or Redis was away, costs one tick. Nothing
else in the room blocks: a claim is never waited for and never cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from fleet._errors import translated
from fleet._wire import execute
from fleet.client import FleetClient
from rewarm.errors import QueueUnavailable
from rewarm.ids import boot_id
from rewarm.messages import GatewayEvent, UnknownSchema, decode_gateway_event

BLOCK_S = 2.0
_BATCH = 512
_RETRY_S = (0.05, 1.0)  # first and longest pause between attempts to reconnect

_log = logging.getLogger("rewarm.fleet.bell")


@dataclass(frozen=True, slots=True)
class Hint:
    """``reason``: enqueue, reap, want, beat, load, catalogue, status, leave, command. ``model`` may be ''."""

    reason: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing was heard for two seconds: look anyway."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Redis went out of reach. Comes once; :class:`Reconnected` follows when it is back."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Redis is back. ``empty``: with another data set, so that everything must be told anew."""

    empty: bool


BellEvent = Hint | GatewayEvent | Tick | Lost | Reconnected


class Bell:
    """``gateway``: also deliver the grants and failures of this gateway, from the first."""

    def __init__(self, client: FleetClient, *, gateway: str | None = None) -> None:
        self._client = client
        self._gateway = gateway

    async def ring(self, reason: str, model: str = "") -> None:
        await self._client.call("XADD", self._client.keys.bell, "MAXLEN", "~", 1024, "*", "r", reason, "m", model)

    async def listen(self) -> AsyncIterator[BellEvent]:
        """Events for ever, at least one every two seconds while Redis answers; hints are coalesced per batch.

        Raises nothing on a lost connection: yields Lost once, tries again with backoff, yields Reconnected.
        """
        reader = _Reader(self._client, self._gateway)
        reached = True  # the caller has connected before: a first failure is a loss
        pause_s = _RETRY_S[0]
        try:
            while True:
                try:
                    if not reader.open:
                        empty = await reader.start()
                        pause_s = _RETRY_S[0]
                        if not reached or empty:
                            _log.warning("redis is back empty=%s", empty)
                            reached = True
                            yield Reconnected(empty)
                    for event in await reader.read():
                        yield event
                except QueueUnavailable as error:
                    await reader.stop()
                    if reached:
                        _log.warning("redis is lost error=%s", error.message)
                        reached = False
                        yield Lost()
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, _RETRY_S[1])
        finally:
            await reader.stop()


class _Reader:
    """One connection and how far it has read."""

    def __init__(self, client: FleetClient, gateway: str | None) -> None:
        self._client = client
        self._redis: Redis | None = None
        self._generation: bytes | None = None
        self._bell = client.keys.bell
        self._grants = None if gateway is None else client.keys.grants(gateway)
        self._read: dict[str, str] = {}  # stream → last id read
        self._checked_s = 0.0

    @property
    def open(self) -> bool:
        return self._redis is not None

    async def start(self) -> bool:
        """Connect; True when this is another data set than the last one seen."""
        self._redis = self._client.reader(BLOCK_S)
        return await self._synchronise()

    async def _synchronise(self) -> bool:
        before = self._generation
        self._generation = await self._current_generation()
        empty = before is not None and before != self._generation
        if empty or not self._read:
            # The bell from now on; a gateway's stream from its start, since everything in it is meant for this process.
            self._read = {self._bell: await self._last(self._bell)}
            if self._grants is not None:
                self._read[self._grants] = "0-0"
        else:
            # A Redis that lost its last second may be behind what was read here; waiting for a later id would be
            # deafness.
            for stream, read in self._read.items():
                self._read[stream] = min(read, await self._last(stream), key=_order)
        return empty

    async def stop(self) -> None:
        redis, self._redis = self._redis, None
        if redis is not None:
            await redis.aclose(close_connection_pool=True)

    async def read(self) -> list[BellEvent]:
        block_ms = int(BLOCK_S * 1000)
        ids = list(self._read.values())
        batch = await self._call("XREAD", "COUNT", _BATCH, "BLOCK", block_ms, "STREAMS", *self._read, *ids)
        hints: dict[Hint, None] = {}
        events: list[BellEvent] = []  # grants first: they run out
        for stream, entries in _streams(batch):
            for id_, fields in entries:
                self._read[stream] = id_
                if stream == self._bell:
                    hints[Hint(fields.get(b"r", b"").decode(), fields.get(b"m", b"").decode())] = None
                else:
                    events += _event(fields)
        if not batch or time.monotonic() - self._checked_s > BLOCK_S:
            self._checked_s = time.monotonic()
            if await self._current_generation() != self._generation:
                # Emptied under a connection that held (FLUSHALL): the same as a fresh server.
                await self._synchronise()
                events.append(Reconnected(empty=True))
        return [*events, *hints] or [Tick()]

    async def _current_generation(self) -> bytes:
        key = self._client.keys.generation
        found: bytes | None = await self._call("GET", key)
        if found is None:
            await self._call("SET", key, boot_id("data"), "NX")
            found = await self._call("GET", key)
        return found or b""

    async def _last(self, stream: str) -> str:
        entries = await self._call("XREVRANGE", stream, "+", "-", "COUNT", 1)
        return entries[0][0].decode() if entries else "0-0"

    async def _call(self, *command: str | int) -> Any:
        if self._redis is None:
            raise QueueUnavailable("Redis is not connected")
        with translated():
            return await execute(self._redis, *command)


def _event(fields: dict[bytes, bytes]) -> list[GatewayEvent]:
    try:
        return [decode_gateway_event(fields.get(b"e", b""))]
    except UnknownSchema as error:
        _log.error("unreadable event skipped error=%s", error)
        return []


def _streams(batch: Any) -> list[tuple[str, list[tuple[str, dict[bytes, bytes]]]]]:
    """XREAD's reply, which redis-py gives as pairs or as a dictionary, by version."""
    pairs = batch.items() if isinstance(batch, dict) else batch or ()
    return [(name.decode(), [(id_.decode(), fields) for id_, fields in entries]) for name, entries in pairs]


def _order(id_: str) -> tuple[int, int]:
    ms, _, seq = id_.partition("-")
    return int(ms), int(seq or 0)
