"""The life of jobs on a whole fleet: they wake a model and keep it up, outlive its failures, and move with a drain."""

from __future__ import annotations

import json
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


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.asyncio
async def test_a_cancelled_job_lets_a_real_engine_rest(tmp_path: Path, smollm2: Path) -> None:
    """Seen at the engine itself: the slot is free, and the process that generates stops to use the CPU."""
    model = {"engine": "vllm", "source": str(smollm2), "context_length": 2048, "dtype": "float32", "slots": 2}
    async with Stack(tmp_path, {"m": model}) as stack:
        serve = await stack.start_serve()
        async with watching(stack) as watched:
            await watched.submit("job_a", ask("Write a long story.", max_tokens=1900, ignore_eos=True))

            async def tokens() -> int:
                job = await watched.jobs.get("job_a")
                return 0 if job is None else job.tokens

            async def generates() -> bool:
                return await tokens() > 10

            await until(generates, "it generates", 120)
            assert await watched.jobs.cancel("job_a", "t") == "cancelling"
            asked = time.monotonic()
            await until(lambda: watched.ended == 1, "it has ended", 10)

            async def free() -> bool:
                (replica,) = await stack.replicas(serve, "m")
                return bool(replica["in_flight"] == 0)

            await until(free, "the slot is free", 5)
            assert time.monotonic() - asked < 5
            assert await tokens() < 1800, "long before its end"

            (core,) = [process for process in stack.engines() if "EngineCor" in process.name()]
            before, at = sum(core.cpu_times()[:2]), time.monotonic()
            await until(lambda: time.monotonic() - at > 2, "two seconds of rest")
            used_s = sum(core.cpu_times()[:2]) - before
            assert used_s < 0.5, f"it generates no more, and used {used_s:.2f} s of CPU"
            job = await watched.jobs.get("job_a")
            assert job is not None and job.state is JobState.CANCELLED
        assert await serve.terminate() == 0


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.asyncio
async def test_a_real_engines_stream_amounts_to_its_plain_answer(tmp_path: Path, smollm2: Path) -> None:
    """Whatever the body asks for: the job's result says what the same request gets without a job."""
    model = {
        "engine": "vllm",
        "source": str(smollm2),
        "context_length": 1024,
        "dtype": "float32",
        "slots": 2,
        "args": ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
    }
    chats: dict[str, dict[str, Any]] = {
        "plain": {},
        "stop": {"stop": ["Paris"]},
        "length": {"max_tokens": 3},
        "logprobs": {"logprobs": True, "top_logprobs": 2, "n": 2, "temperature": 0.5, "seed": 1},
        "tools": {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "max_tokens": 100,
        },
        "usage": {"stream": True, "stream_options": {"include_usage": True}},
    }
    async with Stack(tmp_path, {"m": model}) as stack:
        serve = await stack.start_serve()
        async with watching(stack) as watched:
            expected: dict[str, dict[str, Any]] = {}
            for name, fields in chats.items():
                body = {**ask("What is the capital of France?"), "temperature": 0, "max_tokens": 24, **fields}
                await watched.submit(f"job_{name}", body)
                plain = {key: value for key, value in body.items() if not key.startswith("stream")}
                status, expected[name], _ = await post(serve.url, {"model": "m", **plain})
                assert status == 200, expected[name]
            prompt = {"prompt": ["The capital of France is", "Two and two is"], "max_tokens": 6, "temperature": 0}
            prompt |= {"logprobs": 1, "echo": False}
            await watched.submit("job_completion", prompt, path="/v1/completions")
            status, expected["completion"], _ = await post(serve.url, {"model": "m", **prompt}, path="/v1/completions")
            assert status == 200
            await watched.submit("job_refused", ask(temperature="hot"))
            await until(lambda: watched.ended == len(watched.histories), "all have ended", 60)
            for name, plain in expected.items():
                job = await watched.jobs.get(f"job_{name}")
                assert job is not None and job.state is JobState.COMPLETED, (name, job)
                raw = await watched.jobs.result(f"job_{name}")
                assert raw is not None
                assert said(json.loads(raw)) == said(plain), (name, raw, plain)
                assert job.tokens == plain["usage"]["completion_tokens"], name
            refused = await watched.jobs.get("job_refused")
            assert refused is not None and (refused.state, refused.http_status) == (JobState.FAILED, 400)
            assert (refused.attempt, "temperature" in (refused.error_message or "")) == (1, True)


def said(value: Any) -> Any:
    """An answer without what differs from one to the next, and without nulls and empty fields, which say nothing."""
    if isinstance(value, dict):
        fields = {name: said(part) for name, part in value.items() if name not in ("id", "created", "request_id")}
        return {name: part for name, part in fields.items() if part not in (None, "", [], {})}
    if isinstance(value, list):
        return [said(part) for part in value]
    return "a number" if isinstance(value, float) else value  # two runs differ in the last digits


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.asyncio
async def test_a_job_outlives_a_real_engine_that_dies_under_it(tmp_path: Path, smollm2: Path) -> None:
    model = {
        "engine": "vllm",
        "source": str(smollm2),
        "context_length": 1024,
        "dtype": "float32",
        "slots": 2,
        "retry_backoff": "100ms",
    }
    async with Stack(tmp_path, {"m": model}) as stack:
        serve = await stack.start_serve()
        async with watching(stack) as watched:
            body = ask("Count from one to twenty.", temperature=0, max_tokens=120, ignore_eos=True)
            await watched.submit("job_alone", body)
            await until(lambda: watched.ended == 1, "the undisturbed run", 120)
            await watched.submit("job_struck", body)

            async def generates() -> bool:
                job = await watched.jobs.get("job_struck")
                return job is not None and job.tokens > 10

            await until(generates, "it generates", 60)
            (core,) = [process for process in stack.engines() if "EngineCor" in process.name()]
            core.kill()
            await until(lambda: watched.ended == 2, "it has ended", 120)
            assert await watched.check("job_struck") == await watched.check("job_alone")
            job = await watched.jobs.get("job_struck")
            assert job is not None and (job.attempt, job.spent) == (2, 2)
            assert {chunk.attempt for chunk in await watched.jobs.events("job_struck") if not chunk.end} == {1, 2}
            await no_leaks(watched.client)
        assert await serve.terminate() == 0
