"""A job on a real agent: run, told, bounded, cancelled, given back."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal

import psutil
import pytest

from rewarm.jobs import JobState
from rewarm.states import ReplicaState
from tests.worker.conftest import RunRig, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]
J = JobState


def text_of(answer: dict) -> str:  # type: ignore[type-arg]
    content = answer["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


@pytest.mark.asyncio
async def test_a_job_runs_to_the_answer_that_a_plain_request_would_have_got(job_rig: RunRig) -> None:
    async with job_rig() as r:
        await r.submit("j1", "hello", temperature=0)
        job = await r.ended("j1")
        assert (job.state, job.http_status, job.attempt, job.spent) == (J.COMPLETED, 200, 1, 1)
        answer = await r.answer("j1")
        report = await r.rig.report("m-1")
        _, _, plain = await r.rig.chat(report.endpoint, "hello", temperature=0)
        expected = json.loads(plain)
        expected["choices"][0]["message"]["refusal"] = None
        assert answer == expected
        assert job.usage == answer["usage"]
        assert job.tokens == answer["usage"]["completion_tokens"]
        assert r.seen("j1") == ["start", "end"]


@pytest.mark.asyncio
async def test_its_output_is_what_the_client_would_have_streamed(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.02") as r:
        await r.submit("quiet", fake={"tokens": 30})
        await r.submit("asked", fake={"tokens": 30}, stream=True, stream_options={"include_usage": True})
        await r.ended("quiet")
        await r.ended("asked")
        for name in ("quiet", "asked"):
            events = await r.output(name)
            text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
            assert text == text_of(await r.answer(name))
            assert text.endswith("word29 ")
        assert not any("usage" in event for event in await r.output("quiet"))
        assert (await r.output("asked"))[-1]["usage"]["completion_tokens"] == 30
        chunks = await r.chunks("asked")
        assert [chunk.id for chunk in chunks] == [f"1-{n}" for n in range(1, len(chunks) + 1)]
        assert 3 <= len(chunks) <= 15, "written in batches of about 100 ms"
        assert all(chunk.data.endswith(b"\n\n") for chunk in chunks)


@pytest.mark.asyncio
async def test_progress_is_seen_while_it_runs(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.05") as r:
        await r.submit("j1", fake={"tokens": 40})
        seen: list[int] = []

        async def over() -> bool:
            job = await r.job("j1")
            seen.append(job.tokens)
            return bool(job.state is J.COMPLETED)

        await until(over, "done")
        assert seen == sorted(seen)
        assert len(set(seen)) >= 5
        assert (await r.job("j1")).worker == "w1"


@pytest.mark.asyncio
async def test_completions_and_answers_that_cannot_stream(job_rig: RunRig) -> None:
    async with job_rig() as r:
        await r.send("c", {"prompt": "hello"}, spec={"path": "/v1/completions"})
        await r.send("p", {"messages": [{"role": "user", "content": "x"}], "use_beam_search": True})
        assert (await r.ended("c")).state is J.COMPLETED
        assert (await r.answer("c"))["choices"][0]["text"] == "You said: hello"
        assert (await r.ended("p")).state is J.COMPLETED
        assert text_of(await r.answer("p")) == "You said: x"
        assert await r.chunks("p") == []


@pytest.mark.asyncio
async def test_jobs_leave_one_slot_to_requests_and_all_of_them_end(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.05", slots=3) as r:
        for n in range(6):
            await r.submit(f"j{n}", fake={"tokens": 20})
        await until(lambda: sum(r.seen(f"j{n}") == ["start"] for n in range(6)) == 2, "two run")
        report = await r.rig.report("m-1")
        status, _, _ = await r.rig.chat(report.endpoint, "hi", user="direct", fake={"token_delay": 0})
        assert status == 200, "a request needs to wait for no job"
        for n in range(6):
            assert (await r.ended(f"j{n}")).state is J.COMPLETED
        running = peak = 0
        for line in r.lines():
            if line["tenant"].startswith("j"):
                running += 1 if line["event"] == "start" else -1
                peak = max(peak, running)
        assert peak == 2


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_body_that_the_engine_refuses_fails_at_once_with_the_engines_words(job_rig: RunRig) -> None:
    async with job_rig() as r:
        await r.submit("j1", fake={"fail_status": 422})
        job = await r.ended("j1")
        assert (job.state, job.http_status, job.error_code) == (J.FAILED, 422, "fake_failure")
        assert job.error_message == "told to fail"
        assert (await r.answer("j1"))["error"]["code"] == "fake_failure"
        assert len(r.seen("j1")) == 2, "asked once"


@pytest.mark.parametrize("fault", [{"fail_status": 500}, {"cut_after": 2}, {"truncate_after": 2}])
@pytest.mark.asyncio
async def test_an_engine_at_fault_costs_an_attempt_until_there_are_none(job_rig: RunRig, fault: dict[str, int]) -> None:
    async with job_rig() as r:
        await r.submit("j1", fake=fault, spec={"max_attempts": 2})
        job = await r.ended("j1")
        assert (job.state, job.error_code, job.attempt) == (J.FAILED, "job_attempts_exhausted", 2)
        assert job.error_message
        assert r.seen("j1").count("start") == 2


@pytest.mark.asyncio
async def test_a_silent_engine_costs_an_attempt(job_rig: RunRig) -> None:
    async with job_rig(answer_stall="1s") as r:
        await r.submit("j1", fake={"stall_after": 3}, spec={"max_attempts": 1})
        job = await r.ended("j1")
        assert job.error_code == "job_attempts_exhausted"
        assert "sent nothing for 1 s" in (job.error_message or "")
        await until(lambda: r.seen("j1") == ["start", "abort"], "the engine was left")


@pytest.mark.asyncio
async def test_a_job_that_runs_too_long_fails_and_the_engine_stops(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.05") as r:
        await r.submit("j1", fake={"tokens": 1000}, spec={"max_run_s": 0.5})
        job = await r.ended("j1")
        assert (job.state, job.error_code) == (J.FAILED, "job_timeout")
        assert job.tokens > 0
        await until(lambda: r.seen("j1") == ["start", "abort"], "aborted at the engine")


@pytest.mark.asyncio
async def test_a_cancelled_job_stops_generating_at_once(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.05") as r:
        await r.submit("j1", fake={"tokens": 1000})
        await until(lambda: r.chunks("j1"), "it generates")
        loop = asyncio.get_running_loop()
        asked = loop.time()
        assert await r.jobs.cancel("j1", "t") == "cancelling"
        await until(lambda: r.seen("j1") == ["start", "abort"], "the engine stops")
        assert loop.time() - asked < 1.5, "by the bell, not only at the next renewal"
        job = await r.ended("j1")
        assert (job.state, job.error_code) == (J.CANCELLED, "job_cancelled")
        assert await r.jobs.cancel("j1", "t") == "ended"


# --- what is not the job's fault -------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_engine_that_dies_costs_an_attempt_and_the_next_replica_runs_it_again(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.03") as r:
        await r.submit("j1", fake={"tokens": 60})
        await until(lambda: r.chunks("j1"), "it generates")
        for process in psutil.Process().children(recursive=True):
            try:
                if process.environ().get("REWARM_REPLICA") == "m-1":
                    os.kill(process.pid, signal.SIGKILL)
            except psutil.Error:
                continue
        job = await r.reaches("j1", J.QUEUED)
        assert (job.spent, job.attempt) == (1, 1)
        await r.rig.unwant("m-1")
        await r.rig.ready("m-2")
        job = await r.ended("j1")
        assert (job.state, job.attempt, job.spent) == (J.COMPLETED, 2, 2)
        chunks = await r.chunks("j1")
        attempts = [chunk.attempt for chunk in chunks]
        assert attempts == sorted(attempts)
        assert set(attempts) == {1, 2}
        last = b"".join(chunk.data for chunk in chunks if chunk.attempt == 2).decode()
        events = [json.loads(line[6:]) for line in last.split("\n") if line.startswith("data: ")]
        assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == text_of(await r.answer("j1"))


@pytest.mark.asyncio
async def test_a_replica_that_is_stopped_lets_jobs_finish_in_its_drain(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.03") as r:
        await r.submit("j1", fake={"tokens": 40})
        await until(lambda: r.chunks("j1"), "it generates")
        await r.rig.want("m-1", ReplicaState.STOPPED)
        job = await r.ended("j1")
        assert (job.state, job.attempt) == (J.COMPLETED, 1)
        await r.rig.reaches("m-1", ReplicaState.STOPPED)


@pytest.mark.asyncio
async def test_one_that_outlasts_the_drain_goes_back_without_a_spent_attempt(job_rig: RunRig) -> None:
    async with job_rig("--token-delay", "0.05", drain_deadline="500ms") as r:
        await r.submit("j1", fake={"tokens": 1000})
        await until(lambda: r.chunks("j1"), "it generates")
        await r.rig.want("m-1", ReplicaState.STOPPED)
        job = await r.reaches("j1", J.QUEUED)
        assert (job.spent, job.attempt) == (0, 1)
        await r.rig.reaches("m-1", ReplicaState.STOPPED)


@pytest.mark.asyncio
async def test_a_worker_that_stops_lets_jobs_finish_until_its_deadline_and_gives_the_rest_back(
    job_rig: RunRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rewarm.worker.jobs")
    async with job_rig("--token-delay", "0.05", worker='{"shutdown_deadline": "3s"}') as r:
        await r.submit("short", fake={"tokens": 20})
        await r.submit("long", fake={"tokens": 1000})
        await r.submit("never", spec={"start_deadline_ms": None})
        await until(lambda: r.chunks("long"), "it generates")
        await until(lambda: r.chunks("short"), "both do")
        await until(lambda: r.seen("never") == ["start", "end"], "the third slot")
        r.rig.agent.stop()
        await r.submit("late")
        job = await r.reaches("long", J.QUEUED)
        assert (job.spent, job.attempt) == (0, 1)
        assert "reason=its worker stops" in caplog.text, "before its engine is ended, not by that"
        assert (await r.job("short")).state is J.COMPLETED
        assert (await r.job("late")).state is J.QUEUED, "a worker that stops claims nothing"
        await until(lambda: r.seen("long") == ["start", "abort"], "aborted")
        assert r.seen("late") == []
