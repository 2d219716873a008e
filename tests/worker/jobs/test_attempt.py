"""One attempt at a small engine behind a unix socket, and what its end costs the job."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rewarm.jobs import JobLease, JobSpec
from rewarm.upstream import UpstreamPool
from worker.jobs.ask import ask
from worker.jobs.attempt import Attempt, Limits
from worker.jobs.door import GateDoor
from worker.jobs.verdict import Answered, Broke, End, Requeue, judge

pytestmark = pytest.mark.asyncio

BODY = b'{"model": "m", "input": "hello"}'
GOOD = b'{"object": "list", "data": []}'


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool()
    yield pool
    await pool.close()


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def attempt(pool: UpstreamPool, path: Path) -> End:
    spec = JobSpec(id="j", tenant="t", model="m", asked_model="m", path="/v1/embeddings")
    lease = JobLease(spec=spec, attempt=1, grant="g", replica="m-1", deadline_ms=0, created_ms=0)
    door = GateDoor(pool, f"unix:{path}")

    async def sink(data: bytes, tokens: int) -> None:
        raise AssertionError("a plain answer has no output on the way")

    return await Attempt(door, lease, "g", ask(spec.path, BODY), Limits(stall_s=5.0, max_result_bytes=2**20)).run(sink)


async def test_an_engine_that_dies_of_a_job_on_a_kept_connection_has_cost_it_an_attempt(
    pool: UpstreamPool, tmp_path: Path
) -> None:
    """Taken for one that was never asked, a job that kills its engine would go round for ever."""

    async def dies_of_the_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        writer.write(whole(GOOD))
        await reader.readuntil(BODY)
        (tmp_path / "s").unlink()
        writer.close()

    async with await asyncio.start_unix_server(dies_of_the_second, tmp_path / "s"):
        assert await attempt(pool, tmp_path / "s") == Answered(GOOD)
        verdict = judge(await attempt(pool, tmp_path / "s"), attempt=1, leaving=False)
    assert isinstance(verdict, Requeue) and verdict.spent
    assert verdict.reason.startswith("worker_died")


async def test_an_engine_that_ends_before_it_has_read_a_job_has_cost_it_nothing(
    pool: UpstreamPool, tmp_path: Path
) -> None:
    """It was killed, say, as the job came: that is not what it died of."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.setblocking(False)
        listening.bind(str(tmp_path / "s"))
        listening.listen()

        async def ends() -> None:
            peer, _ = await loop.sock_accept(listening)
            with peer:
                peer.setblocking(False)
                await loop.sock_recv(peer, 1)

        async with asyncio.TaskGroup() as group:
            group.create_task(ends())
            end = await attempt(pool, tmp_path / "s")
    verdict = judge(end, attempt=1, leaving=False)
    assert isinstance(verdict, Requeue) and not verdict.spent


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><html>Welcome</html>", b"", b'{"torn": ', b'"\xff"'])
async def test_a_200_that_is_no_json_is_no_result(pool: UpstreamPool, tmp_path: Path, page: bytes) -> None:
    """A web server that is no engine, say: kept as a result, nobody could ever read it."""

    async def welcomes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        writer.write(whole(page))
        writer.close()

    async with await asyncio.start_unix_server(welcomes, tmp_path / "s"):
        end = await attempt(pool, tmp_path / "s")
    assert end == Broke("engine_bad_response", "the engine answered 200 with what is no JSON")
