"""A process's connections to Redis: a pool for commands, and readers of their own for whoever blocks.

Timeouts are short, because a caller that waits for Redis holds a client's request: 1 s to connect, 2 s for a command.
redis-py's own retries are off (it repeats writes up to ten times); we repeat a call once, and only when its connection
broke under it: everything sent through here may be repeated, and after a restart of Redis every pooled connection
breaks once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fleet._connection import pool
from fleet._errors import translated
from fleet._wire import execute, repeated
from fleet.keys import Keys
from fleet.scripts import Scripts
from rewarm.errors import QueueUnavailable, RedisUnreachable, RedisUnsuitable
from rewarm.ids import boot_id

CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 32
MINIMUM_VERSION = (6, 2)

_log = logging.getLogger("rewarm.fleet.client")
Command = Sequence[str | bytes | int | float]


class FleetClient:
    """Made by :meth:`connect`; close it at the end. ``warnings`` says what the server had better have."""

    def __init__(self, url: str, fleet: str) -> None:
        self.url = url
        self.keys = Keys(fleet)
        self.redis: Redis = _redis(url, MAX_CONNECTIONS, COMMAND_TIMEOUT_S)
        self.scripts = Scripts(self.redis, self.keys)
        self.warnings: list[str] = []

    @classmethod
    async def connect(cls, url: str, fleet: str, *, check: bool = True) -> FleetClient:
        """Raise :class:`RedisUnreachable`, or :class:`RedisUnsuitable` where ``check`` finds the server unfit."""
        try:
            client = cls(url, fleet)
        except (ValueError, redis_errors.RedisError) as error:
            raise RedisUnreachable(f"{redacted(url)} is no usable Redis address: {error}") from error
        try:
            try:
                with translated():
                    await execute(client.redis, "PING")
                    generation = await execute(client.redis, "GET", client.keys.generation)
            except QueueUnavailable as error:
                cause = f": {error.__cause__}" if error.__cause__ else ""
                raise RedisUnreachable(f"{redacted(url)}: {error.message}{cause}") from error
            if check:
                client.warnings = await client._check()
                for warning in client.warnings:
                    _log.warning("redis %s", warning)
            if generation is None:
                await client._begin_generation()
        except BaseException:
            await client.close()
            raise
        return client

    async def _begin_generation(self) -> None:
        """Not where there is one: a server that is out of memory refuses even a SET that would change nothing."""
        try:
            await self.call("SET", self.keys.generation, boot_id("data"), "NX")
        except QueueUnavailable as error:  # whoever listens to the bell sets it in time
            _log.warning("redis takes no data yet error=%s", error.message)

    async def call(self, *command: str | bytes | int | float) -> Any:
        """One command. Raise :class:`QueueUnavailable` where Redis is out of reach or refuses."""
        with translated():
            return await repeated(lambda: execute(self.redis, *command))

    async def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Many commands in one round trip, not atomic; the first refusal is raised."""
        if not commands:
            return []

        async def send() -> list[Any]:
            async with self.redis.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                out: list[Any] = await pipe.execute()
                return out

        with translated():
            return await repeated(send)

    async def time_ms(self) -> int:
        """Redis ``TIME`` in milliseconds (moved by the scripts' clock offset in tests)."""
        seconds, micros = await self.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000 + self.scripts.clock_offset_ms

    def reader(self, block_s: float) -> Redis:
        """A connection of its own for blocking reads of ``block_s``; the caller closes it."""
        return self.readers(block_s, 1)

    def readers(self, block_s: float, count: int) -> Redis:
        """``count`` of them: blocking reads must not take the connections of commands."""
        return _redis(self.url, count, block_s + COMMAND_TIMEOUT_S)

    async def close(self) -> None:
        await self.redis.aclose(close_connection_pool=True)

    async def _check(self) -> list[str]:
        info = await self.call("INFO")
        version = str(info.get("valkey_version") or info.get("redis_version", "0"))
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        where = redacted(self.url)
        if numbers < MINIMUM_VERSION:
            raise RedisUnsuitable(f"{where} runs version {version}; rewarm needs Redis 6.2 or newer, or Valkey")
        if info.get("role") not in (None, "master"):
            raise RedisUnsuitable(f"{where} is a read-only replica; name the primary")
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise RedisUnsuitable(
                f"{where} may evict keys (maxmemory-policy {policy}), which loses requests; "
                "set `maxmemory-policy noeviction`"
            )
        warnings = []
        if not int(info.get("aof_enabled", 1)):
            warnings.append(
                "the append-only file is off: waiting requests are enqueued again by their gateways after a crash, "
                "but everything else in Redis is lost; set `appendonly yes`"
            )
        return warnings


def redacted(url: str) -> str:
    """``url`` without its password, for messages."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    netloc = parts.netloc.replace(f":{parts.password}@", ":***@", 1)
    return urlunsplit(parts._replace(netloc=netloc))


def _redis(url: str, connections: int, timeout_s: float) -> Redis:
    return Redis(
        connection_pool=pool(
            url,
            max_connections=connections,
            timeout=COMMAND_TIMEOUT_S,  # for a free connection
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
            protocol=2,  # the same shapes from every server
            client_name="rewarm",
        )
    )
