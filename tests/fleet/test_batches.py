"""The cursor of a batch: one gateway at a time moves it, and results are written exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from fleet import Batches, FileLimits, Files, FleetClient, Step, error_id, line_job_id, output_id
from fleet.batches import LEASE_MS
from fleet.leaks import find_leaks
from rewarm.errors import BatchesFull, QueueUnavailable, StoredFileNotFound
from rewarm.files import Batch, BatchSpec, BatchState, LineError
from tests.fleet.helpers import advance
from tests.fleet.test_files import content, file, in_use
from tests.redis_server import LocalRedis

pytestmark = pytest.mark.redis


def spec(id_: str = "batch_1", **fields: Any) -> BatchSpec:
    whole: dict[str, Any] = {
        "tenant": "A",
        "endpoint": "/v1/chat/completions",
        "input_file": "file-1",
        "completion_window": "24h",
        "created_ms": 1000,
        "expires_ms": 1000 + 86_400_000,
    }
    return BatchSpec(id=id_, **{**whole, **fields})


async def begun(client: FleetClient, id_: str = "batch_1") -> tuple[Batches, Files]:
    files, batches = Files(client), Batches(client)
    await files.put(file(), b"line\n")
    await batches.create(spec(id_))
    return batches, files


async def read(batches: Batches, id_: str = "batch_1") -> Batch:
    batch = await batches.get(id_)
    assert batch is not None
    return batch


async def end(batches: Batches, owner: str = "gw-1", state: BatchState = BatchState.COMPLETED) -> None:
    batch = await read(batches)
    assert await batches.step(batch, owner, Step(state)) == "ok"


@pytest.mark.asyncio
async def test_the_life_of_a_batch(fleet_client: FleetClient) -> None:
    batches, files = await begun(fleet_client)
    assert (await read(batches)).state is BatchState.VALIDATING
    assert await batches.due() == ["batch_1"]
    assert await batches.claim("batch_1", "gw-1")
    assert await batches.due() == []
    step = Step(BatchState.IN_PROGRESS, numbers={"total": 2})
    assert await batches.step(await read(batches), "gw-1", step) == "ok"
    step = Step(BatchState.IN_PROGRESS, b"one\n", b"two\n", {"line": 2, "offset": 5, "completed": 1, "failed": 1})
    assert await batches.step(await read(batches), "gw-1", step) == "ok"
    batch = await read(batches)
    assert (batch.total, batch.line, batch.offset, batch.completed, batch.failed) == (2, 2, 5, 1, 1)
    assert await files.get(output_id("batch_1"), "A") is None, "not to be seen before the end"
    assert await batches.step(batch, "gw-1", Step(BatchState.COMPLETED)) == "ok"
    batch = await read(batches)
    assert set(batch.times) == {"validating", "in_progress", "completed"}
    assert batch.output_file == output_id("batch_1") and batch.error_file == error_id("batch_1")
    for id_, text in ((output_id("batch_1"), b"one\n"), (error_id("batch_1"), b"two\n")):
        stored = await files.get(id_, "A")
        assert stored is not None and stored.purpose == "batch_output"
        assert await content(files, stored) == text
    assert [b.spec.id for b in await batches.page("A")] == ["batch_1"]
    assert not await batches.claim("batch_1", "gw-1"), "there is nothing left to do"
    assert await in_use(fleet_client) == len(b"line\none\ntwo\n")


@pytest.mark.asyncio
async def test_creating_it_again_changes_nothing(fleet_client: FleetClient) -> None:
    batches, files = await begun(fleet_client)
    await batches.claim("batch_1", "gw-1")
    await batches.create(spec())
    await end(batches)
    assert await files.delete("file-1", "A") == "deleted", "one batch read it, once"


@pytest.mark.asyncio
async def test_a_batch_needs_a_file_of_its_own_tenant(fleet_client: FleetClient) -> None:
    batches, _ = await begun(fleet_client)
    for wrong in ({"input_file": "file-2"}, {"tenant": "B"}):
        with pytest.raises(StoredFileNotFound):
            await batches.create(spec("batch_2", **wrong))
    assert await batches.get("batch_2") is None


@pytest.mark.asyncio
async def test_batches_under_way_are_bounded(fleet_client: FleetClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.batches.MAX_AT_WORK", 1)
    batches, _ = await begun(fleet_client)
    with pytest.raises(BatchesFull):
        await batches.create(spec("batch_2"))


@pytest.mark.asyncio
async def test_the_input_stays_while_a_batch_reads_it(fleet_client: FleetClient) -> None:
    files, batches = Files(fleet_client, FileLimits(retention_s=10)), Batches(fleet_client)
    await files.put(file(), b"line\n")
    await batches.create(spec())
    assert await files.delete("file-1", "A") == "in_use"
    await advance(fleet_client, 3600)
    assert await files.sweep() == 0
    assert await files.get("file-1", "A") is not None
    await batches.claim("batch_1", "gw-1")
    await end(batches)
    assert await files.delete("file-1", "A") == "deleted"


@pytest.mark.asyncio
async def test_another_gateway_takes_over_when_the_lease_is_over_and_not_before(fleet_client: FleetClient) -> None:
    batches, files = await begun(fleet_client)
    assert await batches.claim("batch_1", "gw-1")
    assert not await batches.claim("batch_1", "gw-2")
    stale = await read(batches)
    await advance(fleet_client, LEASE_MS / 1000 + 0.1)
    assert await batches.claim("batch_1", "gw-2")
    late = Step(BatchState.IN_PROGRESS, b"twice\n", numbers={"line": 1})
    assert await batches.step(stale, "gw-1", late) == "lost", "it was taken for dead, and writes nothing any more"
    assert await batches.step(stale, "gw-2", Step(BatchState.COMPLETED, b"once\n")) == "ok"
    stored = await files.get(output_id("batch_1"), "A")
    assert stored is not None and await content(files, stored) == b"once\n"


@pytest.mark.asyncio
async def test_a_step_is_made_once(fleet_client: FleetClient) -> None:
    batches, files = await begun(fleet_client)
    await batches.claim("batch_1", "gw-1")
    before = await read(batches)
    step = Step(BatchState.VALIDATING, b"one\n", numbers={"line": 1})
    assert await batches.step(before, "gw-1", step) == "ok"
    assert await batches.step(before, "gw-1", step) == "ok", "the repeat of a call whose answer was lost"
    assert await batches.step(await read(batches), "gw-1", step) == "ok"
    assert await batches.step(before, "gw-1", step) == "lost", "two steps back is no repeat"
    await end(batches)
    assert await batches.step(before, "gw-1", step) == "lost"
    stored = await files.get(output_id("batch_1"), "A")
    assert stored is not None and stored.bytes == len(b"one\none\n")


@pytest.mark.asyncio
async def test_a_cancel_is_seen_at_the_next_step_and_by_anybody(fleet_client: FleetClient) -> None:
    batches, _ = await begun(fleet_client)
    await batches.claim("batch_1", "gw-1")
    before = await read(batches)
    assert await batches.cancel("batch_1")
    assert await batches.cancel("batch_1"), "twice is once"
    assert await batches.step(before, "gw-1", Step(BatchState.IN_PROGRESS)) == "lost"
    batch = await read(batches)
    assert batch.state is BatchState.CANCELLING
    assert await batches.due() == ["batch_1"], "at once"
    await end(batches, state=BatchState.CANCELLED)
    assert not await batches.cancel("batch_1")
    assert not await batches.cancel("batch_unknown")
    assert (await read(batches)).state is BatchState.CANCELLED


@pytest.mark.asyncio
async def test_output_is_bounded_too(fleet_client: FleetClient) -> None:
    batches, _ = await begun(fleet_client)
    await batches.claim("batch_1", "gw-1")
    batch = await read(batches)
    big = Step(BatchState.IN_PROGRESS, b"x" * 100, numbers={"line": 1}, bound_bytes=100)
    assert await batches.step(batch, "gw-1", big) == "full"
    assert await read(batches) == batch
    assert await batches.step(batch, "gw-1", Step(BatchState.FAILED, error=b"x" * 100)) == "ok"


@pytest.mark.asyncio
async def test_errors_of_lines_are_kept(fleet_client: FleetClient) -> None:
    batches, _ = await begun(fleet_client)
    await batches.claim("batch_1", "gw-1")
    errors = (LineError(code="invalid_json_line", message="no JSON", line=3),)
    assert await batches.step(await read(batches), "gw-1", Step(BatchState.FAILED, errors=errors)) == "ok"
    assert (await read(batches)).errors == errors


@pytest.mark.asyncio
async def test_the_list_forgets_what_is_long_gone(fleet_client: FleetClient) -> None:
    batches, _ = await begun(fleet_client)
    await batches.claim("batch_1", "gw-1")
    await end(batches)
    now = await fleet_client.time_ms()
    await batches.create(spec("batch_2", created_ms=now, expires_ms=now + 1000))
    names = await fleet_client.call("ZRANGE", fleet_client.keys.batches("A"), 0, -1)
    assert names == [b"batch_2"], "the first one was made in 1970"


@pytest.mark.asyncio
async def test_everything_ends_by_itself(fleet_client: FleetClient) -> None:
    batches, files = await begun(fleet_client)
    await batches.claim("batch_1", "gw-1")
    assert await batches.step(await read(batches), "gw-1", Step(BatchState.COMPLETED, b"one\n", b"two\n")) == "ok"
    assert await find_leaks(fleet_client) == []
    await advance(fleet_client, 40 * 86400)
    assert await files.sweep() == 3
    assert await in_use(fleet_client) == 0
    assert not await fleet_client.call("EXISTS", fleet_client.keys.file_accounts, fleet_client.keys.file_ends)
    ttl = await fleet_client.call("PTTL", fleet_client.keys.batch("batch_1"))
    assert 0 < ttl <= 30 * 86_400_000


def test_ids_are_derived_so_that_nothing_is_made_twice() -> None:
    assert line_job_id("batch_1", 1) == line_job_id("batch_1", 1)
    made = {line_job_id("batch_1", 1), line_job_id("batch_1", 2), line_job_id("batch_2", 1)}
    assert len(made) == 3 and all(id_.startswith("job_") for id_ in made)
    assert len({output_id("batch_1"), error_id("batch_1"), output_id("batch_2")}) == 3


@pytest.mark.asyncio
async def test_a_full_redis_takes_no_half_of_a_step(own_redis: LocalRedis) -> None:
    client = await FleetClient.connect(own_redis.url, "full", check=False)
    try:
        batches, files = await begun(client)
        await batches.claim("batch_1", "gw-1")
        before = await read(batches)
        step = Step(BatchState.IN_PROGRESS, b"one\n", b"two\n", {"line": 2})
        await client.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(QueueUnavailable):
            await batches.step(before, "gw-1", step)
        assert await batches.claim("batch_1", "gw-1"), "the lease goes on"
        await client.call("CONFIG", "SET", "maxmemory", "0")
        assert await read(batches) == before
        assert await batches.step(before, "gw-1", step) == "ok"
        await end(batches)
        stored = await files.get(output_id("batch_1"), "A")
        assert stored is not None and await content(files, stored) == b"one\n"
    finally:
        await client.close()
