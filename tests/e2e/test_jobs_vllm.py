"""Jobs on a real engine, which loads for the first of these tests and again for those that kill it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rewarm.jobs import JobState
from tests.e2e.jobs import no_leaks, watching
from tests.e2e.real import NO_POOL, engine_cores, vllm
from tests.e2e.stack import Stack, chat, post, text_of, until
from tests.e2e.test_jobs_progress import check_progress, polled
from tests.e2e.test_jobs_survive import JOBS, ask, result_of, run_killed

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    tools = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    model = vllm(smollm2, retry_backoff="100ms", args=tools)
    async with Stack(tmp_path_factory.mktemp("jobs"), {"m": model}, pool=NO_POOL) as stack:
        serve = await stack.start_serve()
        yield stack
        assert await serve.terminate() == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_polled_through_a_cold_load(stack: Stack) -> None:
    seen, result = await polled(stack.processes[0].url, chat("m", temperature=0, max_tokens=24), 240)
    check_progress(seen)
    assert "Paris" in text_of(result)


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_real_engines_stream_amounts_to_its_plain_answer(stack: Stack) -> None:
    """Whatever the body asks for: the job's result says what the same request gets without a job."""
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
    serve = stack.processes[0]
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
        await watched.submit("job_refused", ask("hello", temperature="hot"))
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


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cancelled_job_lets_a_real_engine_rest(stack: Stack) -> None:
    """Seen at the engine itself: the slot is free, and the process that generates stops to use the CPU."""
    serve = stack.processes[0]
    async with watching(stack) as watched:
        await watched.submit("job_a", ask("Write a long story.", max_tokens=950, ignore_eos=True))

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
        assert await tokens() < 900, "long before its end"

        (core,) = engine_cores(stack)
        before, at = sum(core.cpu_times()[:2]), time.monotonic()
        await until(lambda: time.monotonic() - at > 2, "two seconds of rest")
        used_s = sum(core.cpu_times()[:2]) - before
        assert used_s < 0.5, f"it generates no more, and used {used_s:.2f} s of CPU"
        job = await watched.jobs.get("job_a")
        assert job is not None and job.state is JobState.CANCELLED


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_outlives_a_real_engine_that_dies_under_it(stack: Stack) -> None:
    async with watching(stack) as watched:
        body = ask("Count from one to twenty.", temperature=0, max_tokens=120, ignore_eos=True)
        await watched.submit("job_alone", body)
        await until(lambda: watched.ended == 1, "the undisturbed run", 120)
        await watched.submit("job_struck", body)

        async def generates() -> bool:
            job = await watched.jobs.get("job_struck")
            return job is not None and job.tokens > 10

        await until(generates, "it generates", 60)
        (core,) = engine_cores(stack)
        core.kill()
        await until(lambda: watched.ended == 2, "it has ended", 120)
        assert await watched.check("job_struck") == await watched.check("job_alone")
        job = await watched.jobs.get("job_struck")
        assert job is not None and (job.attempt, job.spent) == (2, 2)
        assert {chunk.attempt for chunk in await watched.jobs.events("job_struck") if not chunk.end} == {1, 2}
        await no_leaks(watched.client)


THINGS = """
    rain snow wind fire stone river ocean forest desert mountain bread cheese apples coffee salt sugar music painting
    theatre books trains ships bridges roads clocks maps gold iron glass paper horses cats dogs bees whales eagles Paris
    London Rome Berlin doctors farmers pilots teachers summer winter spring autumn sleep dreams
"""
WORDS = THINGS.split()
assert len(WORDS) == JOBS


@pytest.mark.asyncio(loop_scope="module")
async def test_kills_of_worker_gateway_and_redis_cost_no_job_and_change_no_text(stack: Stack) -> None:
    """Greedy in float32, so that two runs can only say the same; the first one is left alone."""
    serve = stack.processes[0]
    fields = {"temperature": 0, "max_tokens": 16, "ignore_eos": True}
    bodies = [ask(f"Write one sentence about {word}.", **fields) for word in WORDS]
    async with watching(stack) as watched:
        alone = [await watched.order(serve.url, f"alone-{n}", body) for n, body in enumerate(bodies)]
        await until(lambda: watched.ended == JOBS, "the undisturbed run", 120)
        expected = [await watched.check(id_) for id_ in alone]
        assert all(len(history.attempts) == 1 for history in watched.histories.values())
        assert len(set(expected)) > JOBS // 2, "prompts that the model answers differently"
        watched.histories.clear()
        ids = await run_killed(serve, watched, bodies)
        assert [await watched.check(id_) for id_ in ids] == expected
        assert [await result_of(serve.url, id_) for id_ in ids] == expected
        assert any(len(history.attempts) > 1 for history in watched.histories.values())
        await no_leaks(watched.client)
