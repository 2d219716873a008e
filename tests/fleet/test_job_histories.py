"""Many workers, a network that loses replies, a Redis that is killed: what happened to each job, not how many ended."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from fleet import FleetClient, Jobs, Queue
from fleet.leaks import find_leaks
from rewarm.errors import QueueUnavailable
from rewarm.jobs import TERMINAL, JobLease, JobState
from tests.faults.redis_proxy import RedisProxy, redis_proxy
from tests.fleet.helpers import advance, ids
from tests.fleet.job_helpers import claim_jobs, done, submit
from tests.fleet.lua_sources import checked_sources
from tests.redis_server import LocalRedis

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

JOBS = ids(150, "job_")
WORKERS = 5
CHUNKS = 3


class Worker:
    """Runs jobs, and now and then stops half-way: it hands back, dies without a word, or wakes up when all is over."""

    def __init__(self, name: str, client: FleetClient, seed: int) -> None:
        self.name = name
        self.client = client
        self.jobs = Jobs(client)
        self.random = random.Random(seed)
        self.finished: list[tuple[str, int]] = []  # (job, attempt) that it was told were ended by it
        self.zombies: list[JobLease] = []

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                claimed = await claim_jobs(self.client, 2, boot=self.name)
                for lease in claimed.jobs:
                    await self._run(lease)
                for lease in self.zombies[:-2]:
                    await self._write(lease)  # it believes that it still holds them
                if not claimed.jobs:
                    await asyncio.sleep(0.005)
            except QueueUnavailable:
                await asyncio.sleep(0.02)

    async def _run(self, lease: JobLease) -> None:
        fate = self.random.random()
        if fate < 0.15:
            self.zombies.append(lease)
            return
        if not await self._write(lease, CHUNKS if fate > 0.3 else 1):
            return
        if fate < 0.3:
            await self.jobs.requeue(lease.spec.id, self.name, lease.attempt, spent=False, reason="it drains")
        elif await self.jobs.finish(lease.spec.id, self.name, lease.attempt, done(), self._result(lease)):
            self.finished.append((lease.spec.id, lease.attempt))

    async def _write(self, lease: JobLease, chunks: int = CHUNKS) -> bool:
        for seq in range(1, chunks + 1):
            data = f"{self.name} {lease.attempt} {seq}".encode()
            if not await self.jobs.chunk(lease.spec.id, self.name, lease.attempt, seq, data, tokens=seq):
                return False
        return True

    def _result(self, lease: JobLease) -> bytes:
        return f"{self.name} {lease.attempt}".encode()


async def _client(url: str) -> FleetClient:
    client = await FleetClient.connect(url, "histories", check=False)
    client.scripts.use(checked_sources())
    return client


async def _trouble(own_redis: LocalRedis, proxies: list[RedisProxy], rng: random.Random) -> None:
    """Replies lost and connections cut, all the time; Redis killed once in the middle."""
    for step in range(40):
        await asyncio.sleep(0.01)
        proxy = rng.choice(proxies)
        if step == 20:
            own_redis.kill()
            await asyncio.to_thread(own_redis.start)
        elif rng.random() < 0.6:
            proxy.lose_the_reply_to(b"EVALSHA")
        else:
            await proxy.cut()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_job_ends_once_and_no_attempt_writes_into_another(own_redis: LocalRedis, seed: int) -> None:
    direct = await _client(own_redis.url)
    jobs = Jobs(direct)
    for id_ in JOBS:
        await submit(jobs, id_, max_attempts=1000)
    stop = asyncio.Event()
    async with redis_proxy(own_redis.url) as first, redis_proxy(own_redis.url) as second:
        clients = [await _client((first, second)[n % 2].url) for n in range(WORKERS)]
        workers = [Worker(f"boot-{n}", client, seed * 100 + n) for n, client in enumerate(clients)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run(stop))
            await _trouble(own_redis, [first, second], random.Random(seed))
            while True:  # leases of the silent run out, until all have ended
                for client in clients:
                    client.scripts.clock_offset_ms += 16_000
                await advance(direct, 16)
                await Queue(direct).reap()
                found = [job for job in await jobs.get_many(JOBS) if job is not None]
                if all(job.state in TERMINAL for job in found):
                    break
                await asyncio.sleep(0.02)
            stop.set()

        ended: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for worker in workers:
            for id_, attempt in worker.finished:
                ended[id_].append((worker.name, attempt))
        for job in found:
            id_ = job.spec.id
            assert job.state is JobState.COMPLETED
            chunks = [chunk for chunk in await jobs.events(id_) if not chunk.end]
            numbers = [(chunk.attempt, chunk.seq) for chunk in chunks]
            assert numbers == sorted(set(numbers)), f"{id_}: attempts interleave"
            owners = {chunk.attempt: chunk.data.split()[0] for chunk in chunks}
            assert [chunk.data for chunk in chunks] == [
                b"%s %d %d" % (owners[attempt], attempt, seq) for attempt, seq in numbers
            ], f"{id_}: two workers wrote one attempt"
            # Whoever was told that its end counts is the one whose result lies there; nobody else was told so.
            (told,) = set(ended[id_]) or {(owners[job.attempt].decode(), job.attempt)}
            assert await jobs.result(id_) == f"{told[0]} {told[1]}".encode()
            assert told[1] == job.attempt
            assert [seq for attempt, seq in numbers if attempt == job.attempt] == list(range(1, CHUNKS + 1))
        assert sum(len(worker.zombies) for worker in workers) > 0, "nobody fell silent: the test shows nothing"
        assert await find_leaks(direct) == []
        for client in (*clients, direct):
            await client.close()
