"""What a configured Redis must be, and what is said when it is not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from redis import exceptions as redis_errors

from fleet import FleetClient
from fleet._errors import RedisFull, translate
from fleet.client import redacted
from rewarm.errors import RedisUnreachable, RedisUnsuitable
from tests.faults.redis_proxy import redis_proxy
from tests.redis_server import LocalRedis, local_redis

pytestmark = pytest.mark.redis


@pytest.fixture
def without_file() -> Iterator[LocalRedis]:
    with local_redis("--appendonly", "no") as server:
        yield server


@pytest.mark.asyncio
async def test_a_good_server_has_no_warnings(own_redis: LocalRedis) -> None:
    client = await FleetClient.connect(own_redis.url, "f")
    assert client.warnings == []
    await client.close()


@pytest.mark.asyncio
async def test_a_server_without_append_only_file_is_warned_of(without_file: LocalRedis) -> None:
    client = await FleetClient.connect(without_file.url, "f")
    assert len(client.warnings) == 1
    assert "appendonly yes" in client.warnings[0]
    await client.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("fleet", ["f", "another"], ids=["of a fleet that runs", "of a new one"])
async def test_a_server_that_is_out_of_memory_is_connected_to(own_redis: LocalRedis, fleet: str) -> None:
    """What waits there can be served and makes room again, by processes that may have been started since."""
    client = await FleetClient.connect(own_redis.url, "f")
    await client.call("CONFIG", "SET", "maxmemory", "1")
    second = await FleetClient.connect(own_redis.url, fleet)
    assert await second.call("PING")
    await second.close()
    await client.call("CONFIG", "SET", "maxmemory", "0")
    await client.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_a_server_that_evicts_is_refused(own_redis: LocalRedis, policy: str) -> None:
    client = await FleetClient.connect(own_redis.url, "f")
    await client.call("CONFIG", "SET", "maxmemory-policy", policy)
    await client.close()
    with pytest.raises(RedisUnsuitable, match=rf"{policy}.*noeviction"):
        await FleetClient.connect(own_redis.url, "f")


@pytest.mark.asyncio
async def test_a_replica_is_refused(own_redis: LocalRedis) -> None:
    client = await FleetClient.connect(own_redis.url, "f")
    await client.call("REPLICAOF", "127.0.0.1", "1")
    await client.close()
    with pytest.raises(RedisUnsuitable, match="replica"):
        await FleetClient.connect(own_redis.url, "f")


@pytest.mark.asyncio
async def test_an_old_server_is_refused(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def info(self: FleetClient, *command: object) -> dict[str, object]:
        return {"redis_version": "6.0.16", "role": "master"}

    monkeypatch.setattr(FleetClient, "call", info)
    with pytest.raises(RedisUnsuitable, match=r"6\.0\.16.*6\.2"):
        await FleetClient.connect(redis_url, "f")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1/0", "unix:///nowhere/redis.sock", "redis://:geheim@127.0.0.1:1/0", "http://x"]
)
async def test_nobody_there_is_said_with_the_address_and_without_the_password(url: str) -> None:
    with pytest.raises(RedisUnreachable) as raised:
        await FleetClient.connect(url, "f")
    assert redacted(url) in raised.value.message
    assert "geheim" not in raised.value.message


@pytest.mark.asyncio
async def test_a_wrong_password_is_said(own_redis: LocalRedis) -> None:
    client = await FleetClient.connect(own_redis.url, "f")
    await client.call("CONFIG", "SET", "requirepass", "secret")
    await client.close()
    with pytest.raises(RedisUnreachable, match=r"password|Authentication"):
        await FleetClient.connect(own_redis.url, "f")


@pytest.mark.asyncio
async def test_a_server_that_accepts_and_says_nothing_is_given_up(redis_url: str) -> None:
    async with redis_proxy(redis_url) as proxy:
        proxy.silent = True
        started = time.monotonic()
        with pytest.raises(RedisUnreachable, match="does not answer"):
            await FleetClient.connect(proxy.url, "f")
        assert time.monotonic() - started < 4


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (redis_errors.BusyLoadingError("LOADING"), "loading"),
        (redis_errors.ReadOnlyError("READONLY You can't write"), "read-only"),
        (redis_errors.ResponseError("BUSY Redis is busy running a script"), "busy"),
        (redis_errors.ResponseError("MISCONF Errors writing to the AOF file"), "disk"),
        # As Redis 6.2 reports an error inside a script.
        (redis_errors.ResponseError("ERR Error running script: @user_script: 3: -READONLY You can't"), "read-only"),
        (redis_errors.ResponseError("ERR Error running script: -OOM command not allowed when used"), "memory"),
        (redis_errors.TimeoutError("x"), "answer"),
        (ConnectionResetError(), "reached"),
    ],
)
def test_what_redis_refuses_is_a_typed_error(error: Exception, message: str) -> None:
    ours = translate(error)
    assert ours is not None
    assert message in ours.message
    assert isinstance(ours, RedisFull) == ("memory" in message)


def test_a_bug_of_ours_is_not_taken_for_an_outage() -> None:
    assert translate(redis_errors.ResponseError("WRONGTYPE Operation against a key")) is None
    assert translate(redis_errors.ResponseError("ERR user_script:3: attempt to compare nil with number")) is None
