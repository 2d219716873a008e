"""Files of tenants in Redis: whole or not there, bounded in bytes, gone after their time."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import PIECE_BYTES, FileLimits, Files, FleetClient
from fleet.leaks import find_leaks
from rewarm.errors import FilesFull, FileTooLarge
from rewarm.files import StoredFile
from tests.fleet.helpers import advance, forget_fleet
from tests.redis_server import LocalRedis

pytestmark = pytest.mark.redis


def file(id_: str = "file-1", tenant: str = "A", **fields: Any) -> StoredFile:
    whole: dict[str, Any] = {"filename": "in.jsonl", "purpose": "batch", "bytes": 0, "created_ms": 0, "expires_ms": 0}
    return StoredFile(id=id_, tenant=tenant, **{**whole, **fields})


async def content(files: Files, stored: StoredFile) -> bytes:
    return b"".join([piece async for piece in files.read(stored)])


async def in_use(client: FleetClient, tenant: str = "A") -> int:
    return int(await client.call("HGET", client.keys.file_accounts, "@" + tenant) or 0)


@pytest.mark.asyncio
async def test_a_file_comes_back_as_it_was_put(fleet_client: FleetClient) -> None:
    files = Files(fleet_client)
    data = bytes(range(256)) * (PIECE_BYTES // 256) + b"the rest"  # more than one piece
    put = await files.put(file(filename="a.jsonl"), data)
    found = await files.get("file-1", "A")
    assert found == put
    assert (put.bytes, put.filename) == (len(data), "a.jsonl")
    assert put.expires_ms - put.created_ms == 30 * 86400 * 1000
    assert await content(files, put) == data
    assert b"".join([p async for p in files.read(put, PIECE_BYTES - 2, PIECE_BYTES + 3)]) == data[-10:-5]


@pytest.mark.asyncio
async def test_an_empty_file_is_a_file(fleet_client: FleetClient) -> None:
    files = Files(fleet_client)
    put = await files.put(file(), b"")
    assert await files.get("file-1", "A") == put
    assert await content(files, put) == b""


@pytest.mark.asyncio
async def test_a_file_is_its_tenant_s_alone(fleet_client: FleetClient) -> None:
    files = Files(fleet_client)
    await files.put(file(), b"x")
    assert await files.get("file-1", "B") is None
    assert await files.page("B") == []
    assert await files.delete("file-1", "B") == "unknown"
    assert await files.get("file-1", "A") is not None


@pytest.mark.asyncio
async def test_the_list_comes_in_pages(fleet_client: FleetClient) -> None:
    files = Files(fleet_client)
    for i in range(5):
        await files.put(file(f"file-{i}"), b"x")
        fleet_client.scripts.clock_offset_ms += 10

    async def ids(**how: Any) -> list[str]:
        return [f.id for f in await files.page("A", **how)]

    assert await ids() == [f"file-{i}" for i in (4, 3, 2, 1, 0)]
    assert await ids(limit=2) == ["file-4", "file-3"]
    assert await ids(limit=2, after="file-3") == ["file-2", "file-1"]
    assert await ids(newest_first=False, limit=2) == ["file-0", "file-1"]
    assert await ids(after="file-unknown") == []


@pytest.mark.asyncio
async def test_a_tenant_s_bytes_are_bounded_and_a_deleted_file_gives_them_back(fleet_client: FleetClient) -> None:
    files = Files(fleet_client, FileLimits(max_bytes_tenant=10, max_bytes_total=15))
    await files.put(file("file-1"), b"123456")
    with pytest.raises(FilesFull):
        await files.put(file("file-2"), b"12345")
    assert await files.get("file-2", "A") is None
    assert await in_use(fleet_client) == 6
    await files.put(file("file-3"), b"1234")
    with pytest.raises(FilesFull, match="of all tenants"):
        await files.put(file("file-4", "B"), b"123456")
    assert await files.delete("file-1", "A") == "deleted"
    assert await files.delete("file-1", "A") == "unknown"
    await files.put(file("file-4", "B"), b"123456")
    assert await in_use(fleet_client) == 4


@pytest.mark.asyncio
async def test_one_file_is_bounded_before_anything_is_kept(fleet_client: FleetClient) -> None:
    files = Files(fleet_client, FileLimits(max_file=3))
    with pytest.raises(FileTooLarge):
        await files.put(file(), b"1234")
    assert await in_use(fleet_client) == 0


@pytest.mark.asyncio
async def test_putting_it_again_changes_nothing(fleet_client: FleetClient) -> None:
    files = Files(fleet_client)
    await files.put(file(), b"abc")
    await files.put(file(), b"abc")
    assert await in_use(fleet_client) == 3
    assert [f.id for f in await files.page("A")] == ["file-1"]


@pytest.mark.asyncio
async def test_after_its_time_it_is_gone_and_the_sweep_gives_its_bytes_back(fleet_client: FleetClient) -> None:
    files = Files(fleet_client, FileLimits(retention_s=100))
    await files.put(file(), b"abc")
    await advance(fleet_client, 99)
    assert await files.sweep() == 0
    assert await files._delete("file-1", "A", overdue=True) == 0, "its end was put off after the sweep had looked"
    assert await files.get("file-1", "A") is not None
    await advance(fleet_client, 2)
    assert await files.get("file-1", "A") is None, "also before a sweep"
    assert await files.sweep() == 1
    assert await in_use(fleet_client) == 0
    names = [key async for key in fleet_client.redis.scan_iter(match=f"{fleet_client.keys.prefix}*file*")]
    assert names == []


@pytest.mark.asyncio
async def test_an_upload_that_was_never_finished_is_not_seen_and_goes(fleet_client: FleetClient) -> None:
    files = Files(fleet_client)
    await files._begin(file(bytes=5))
    assert await files.get("file-1", "A") is None
    assert await in_use(fleet_client) == 5, "its room is taken"
    await advance(fleet_client, 601)
    assert await files.sweep() == 1
    assert await in_use(fleet_client) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "damage",
    [
        lambda k: ("DEL", k.file("file-1")),
        lambda k: ("HSET", k.file("file-1"), "bytes", 7),
        lambda k: ("HDEL", k.file_accounts, "=file-1"),
        lambda k: ("HINCRBY", k.file_accounts, "@A", 1),
        lambda k: ("ZREM", k.file_ends, "file-1"),
        lambda k: ("ZADD", k.batches_at_work, 1, "batch_none"),
    ],
)
async def test_the_leak_check_sees_accounts_that_are_wrong(fleet_client: FleetClient, damage: Any) -> None:
    await Files(fleet_client).put(file(), b"abc")
    assert await find_leaks(fleet_client) == []
    await fleet_client.call(*damage(fleet_client.keys))
    assert await find_leaks(fleet_client) != []
    await forget_fleet(fleet_client)


@pytest.mark.asyncio
async def test_a_file_of_which_a_piece_is_missing_is_not_shown(fleet_client: FleetClient) -> None:
    files, keys = Files(fleet_client), fleet_client.keys
    await files._begin(file(bytes=5))
    await fleet_client.scripts.run("file_piece", [keys.file("file-1"), keys.file_data("file-1")], [0, b"abc"])
    names = [keys.file("file-1"), keys.file_data("file-1"), keys.files("A"), keys.file_ends]
    assert await fleet_client.scripts.run("file_commit", names, ["file-1", 0, 1000]) == 0
    assert await files.get("file-1", "A") is None
    assert await find_leaks(fleet_client) == []


@pytest.mark.asyncio
async def test_a_full_redis_keeps_nothing_of_a_file_and_still_lets_go_of_one(own_redis: LocalRedis) -> None:
    client = await FleetClient.connect(own_redis.url, "full", check=False)
    try:
        files = Files(client)
        await files.put(file("file-1"), b"abc")
        await client.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(FilesFull):
            await files.put(file("file-2"), b"abc")
        assert await files.delete("file-1", "A") == "deleted"
        await client.call("CONFIG", "SET", "maxmemory", "0")
        assert await in_use(client) == 0
        assert await find_leaks(client) == []
    finally:
        await client.close()
