"""The life of jobs on a whole fleet: they wake a model and keep it up, outlive its failures, and move with a drain."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rewarm.jobs import JobState
from tests.e2e.conftest import EngineLog
from tests.e2e.jobs import no_leaks, watching
from tests.e2e.stack import Stack, chat, fake, post, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


def ask(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


@pytest.mark.asyncio
async def test_a_job_wakes_its_model_which_goes_back_to_zero_afterwards(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"m": fake("--start-delay", "0.5", idle_after="2s")}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        async with watching(stack) as watched:
            await watched.submit("job_a", ask())
            await until(lambda: watched.ended == 1, "the job has ended")
            assert await watched.check("job_a") == "You said: hello"

            async def cold() -> bool:
                return not stack.engines() and await stack.replica_states(gateway, "m") == []

            await until(cold, "the model is at zero again")
            await no_leaks(watched.client)


@pytest.mark.asyncio
async def test_a_model_stays_up_for_as_long_as_jobs_wait_or_run(tmp_path: Path) -> None:
    """Each takes longer than the model may idle; in between nothing stops."""
    async with Stack(tmp_path, {"m": fake("--token-delay", "0.05", idle_after="1s", slots=1)}) as stack:
        await stack.start_redis()
        await stack.start_gateway()
        worker = await stack.start_worker()
        async with watching(stack) as watched:
            for n in range(4):
                await watched.submit(f"job_{n}", ask(fake={"tokens": 40}))
            await until(lambda: watched.ended == 4, "all have ended", 60)
            assert all(len(h.attempts) == 1 for h in watched.histories.values())
            assert worker.text().count("event=start ") == 1, "one load for all of them"


@pytest.mark.asyncio
async def test_requests_find_a_slot_however_many_jobs_wait(tmp_path: Path, engine_log: EngineLog) -> None:
    model = fake("--token-delay", "0.02", "--log", str(engine_log.path), slots=3)
    async with Stack(tmp_path / "s", {"m": model}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        async with watching(stack) as watched:
            for n in range(12):
                await watched.submit(f"job_{n}", ask(fake={"tokens": 100}))
            await until(lambda: watched.count(JobState.IN_PROGRESS) == 2, "two of three slots are theirs")
            for n in range(10):
                began = time.monotonic()
                status, body, _ = await post(gateway.url, chat("m", f"r{n}", fake={"token_delay": 0}))
                assert (status, text_of(body)) == (200, f"You said: r{n}")
                assert time.monotonic() - began < 1.0, "a job takes two seconds: the request waited for none"
            assert watched.ended < 12
            for id_ in watched.histories:
                await watched.jobs.cancel(id_, "t")
            await until(lambda: watched.ended == 12, "all have ended")


@pytest.mark.asyncio
async def test_a_model_that_cannot_load_fails_a_job_after_a_few_loads_and_no_attempt(tmp_path: Path) -> None:
    model = fake("--exit-at-start", "3", load_attempts=1, failure_memory="1s")
    async with Stack(tmp_path, {"broken": model}) as stack:
        await stack.start_redis()
        await stack.start_gateway()
        worker = await stack.start_worker()
        async with watching(stack) as watched:
            await watched.submit("job_a", ask(), model="broken", max_loads=3)
            await until(lambda: watched.ended == 1, "the job has ended", 60)
            job = await watched.jobs.get("job_a")
            assert job is not None
            assert (job.state, job.error_code) == (JobState.FAILED, "model_load_failed")
            assert (job.attempt, job.spent, job.loads) == (0, 0, 3)
            assert "exited with status 3" in (job.error_message or "")
            assert worker.text().count("event=start ") == 3
            await no_leaks(watched.client)


@pytest.mark.asyncio
async def test_a_job_that_kills_every_engine_is_ended_and_takes_nobody_along(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"m": fake("--token-delay", "0.02", slots=4, retry_backoff="100ms")}) as stack:
        await stack.start_redis()
        await stack.start_gateway()
        await stack.start_worker()
        async with watching(stack) as watched:
            await watched.submit("job_poison", ask(fake={"tokens": 100, "die_after_tokens": 20}))
            for n in range(6):
                await watched.submit(f"job_{n}", ask(f"n{n}", fake={"tokens": 60}))
            await until(lambda: watched.ended == 7, "all have ended", 90)
            poison = await watched.jobs.get("job_poison")
            assert poison is not None
            assert (poison.state, poison.error_code) == (JobState.FAILED, "job_attempts_exhausted")
            assert poison.spent == 3
            assert "worker_died" in (poison.error_message or ""), poison.error_message
            for n in range(6):
                assert (await watched.check(f"job_{n}")).endswith("word59 ")
                job = await watched.jobs.get(f"job_{n}")
                assert job is not None
                assert job.spent <= 2, "suspects run one at a time: whoever ran beside the culprit once does not again"
            await no_leaks(watched.client)


@pytest.mark.asyncio
async def test_a_worker_that_is_told_to_stop_hands_its_jobs_to_another(tmp_path: Path) -> None:
    model = fake("--token-delay", "0.05", max_replicas=2)
    async with Stack(tmp_path, {"m": model}) as stack:
        await stack.start_redis()
        await stack.start_gateway()
        first = await stack.start_worker("worker-1", shutdown_deadline="2s")
        async with watching(stack) as watched:
            await watched.submit("job_long", ask(fake={"tokens": 100}))
            await watched.submit("job_short", ask(fake={"tokens": 20}))
            await until(lambda: watched.count(JobState.IN_PROGRESS) == 2, "both run")
            await stack.start_worker("worker-2")
            began = time.monotonic()
            assert await first.terminate() == 0
            assert time.monotonic() - began < 8
            await until(lambda: watched.ended == 2, "both have ended", 60)
            await watched.check("job_long")
            await watched.check("job_short")
            long = await watched.jobs.get("job_long")
            short = await watched.jobs.get("job_short")
            assert long is not None and (long.worker, long.attempt, long.spent) == ("worker-2", 2, 1)
            assert short is not None and (short.worker, short.attempt) == ("worker-1", 1)
