"""taskiq-redis as `benchmarks.queue` measures it: a program of its own, in the environment that setup.sh made for it.

    .venv-taskiq/bin/python -m benchmarks._queue_peer URL JOBS SAMPLE BODY_BYTES RESULT_BYTES AT_ONCE WORKERS

Its stream broker, which acknowledges messages and hands those of a dead worker on, with its result backend: what it has
that is nearest to a job which survives. Prints one JSON document.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from redis.asyncio import Redis
from taskiq import AckableMessage, TaskiqResult
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks._timing import timed

RESULT_S = 7 * 86400


async def measure(url: str, jobs: int, sample: int, body: str, result: str, at_once: int, workers: int) -> Any:
    results: Any = RedisAsyncResultBackend(url, result_ex_time=RESULT_S)
    broker = RedisStreamBroker(url, consumer_name="submitter").with_result_backend(results)

    task: Any = broker.task(task_name="infer")(infer)
    await broker.startup()
    before = await used_memory(broker)
    fill = await timed(jobs - sample, at_once, lambda _: task.kiq(body))
    enqueue = await timed(sample, at_once, lambda _: task.kiq(body))
    memory = await used_memory(broker) - before

    # A worker takes one message when it has a slot for it, so no reading ahead.
    consumers = [RedisStreamBroker(url, consumer_name=f"worker-{n}", xread_count=1) for n in range(workers)]
    for consumer in consumers:
        await consumer.startup()
    listening = [consumer.listen() for consumer in consumers]
    taken: list[AckableMessage] = []
    free = asyncio.Queue[Any]()
    for one in listening:
        free.put_nowait(one)

    async def claim(_: int) -> None:
        one = free.get_nowait()
        message = await anext(one)
        assert isinstance(message, AckableMessage)
        taken.append(message)
        free.put_nowait(one)

    claimed = await timed(sample, workers, claim)

    async def finish(number: int) -> None:
        message = taken[number]
        parsed = broker.formatter.loads(message.data)
        answer: Any = TaskiqResult(is_err=False, return_value=result, execution_time=0.0)
        await results.set_result(parsed.task_id, answer)
        done = message.ack()
        if done is not None:
            await done

    finished = await timed(sample, workers, finish)
    for one in listening:
        await one.aclose()
    for each in (*consumers, broker):
        await each.shutdown()
    return {
        "fill_per_s": round(fill.per_s) if jobs > sample else None,
        "enqueue": enqueue.json(),
        "claim": claimed.json(),
        "finish": finished.json(),
        "memory_bytes": memory,
    }


async def infer(body: str) -> str:
    return body


async def used_memory(broker: RedisStreamBroker) -> int:
    redis: Any = Redis(connection_pool=broker.connection_pool)
    return int((await redis.info("memory"))["used_memory"])


def main() -> None:
    url, *numbers = sys.argv[1:]
    jobs, sample, body_bytes, result_bytes, at_once, workers = map(int, numbers)
    out = asyncio.run(measure(url, jobs, sample, "x" * body_bytes, "x" * result_bytes, at_once, workers))
    print(json.dumps(out))


if __name__ == "__main__":
    main()
