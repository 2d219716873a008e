"""Jobs at somebody else's API, and jobs that go on to another model: a real agent, a real upstream, a real Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from fleet import FleetClient, Jobs
from rewarm.config import catalogue, parse
from rewarm.jobs import JobState
from tests.gateway.upstream_api import KEY, THEIRS, UpstreamApi, failing, half_a_stream, well
from tests.worker.conftest import Rig, RunRig, until
from tests.worker.jobs.conftest import JobRig

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[UpstreamApi]:
    async with UpstreamApi() as made:
        yield made


@pytest_asyncio.fixture
async def jobs(
    rig: RunRig, api: UpstreamApi, monkeypatch: pytest.MonkeyPatch, fleet_client: FleetClient, tmp_path: object
) -> AsyncIterator[JobRig]:
    """A worker, and a fleet whose model ``far`` is remote; ``m`` is an engine of the worker, not started."""
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    async with rig() as inner:
        await publish(inner, api)
        yield JobRig(inner, inner.paths.state / "no.log")


async def publish(rig: Rig, api: UpstreamApi) -> None:
    far = {
        "engine": "remote",
        "url": api.url,
        "key_env": "UPSTREAM_KEY",
        "upstream_model": THEIRS,
        "concurrency": 2,
    }
    entries = {**rig.entries, **catalogue(parse(json.dumps({"models": {"far": far}})))}
    await rig.publisher.catalogue(entries.values())


async def send(jobs: JobRig, id_: str, **spec: object) -> None:
    await jobs.submit(id_, spec={"model": "far", "asked_model": "far", **spec})


async def test_a_worker_runs_the_jobs_of_a_remote_model(jobs: JobRig, api: UpstreamApi) -> None:
    await send(jobs, "j")
    job = await jobs.ended("j")
    assert job.state is JobState.COMPLETED
    answer = await jobs.answer("j")
    assert (answer["model"], answer["choices"][0]["message"]["content"]) == ("far", "Hi from afar")
    assert {event["model"] for event in await jobs.output("j") if event["choices"][0]["delta"]} == {"far"}
    path, headers, body = api.requests[0]
    assert path == "/api/v1/chat/completions" and body["model"] == THEIRS and body["stream"] is True
    assert headers["authorization"] == f"Bearer {KEY}"


async def test_no_more_at_once_than_its_bound(jobs: JobRig, api: UpstreamApi) -> None:
    go = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        await go.wait()
        return await well(request, body)

    api.answer = slow
    for number in range(5):
        await send(jobs, f"j{number}")
    await until(lambda: api.running == 2, "two run")
    go.set()
    for number in range(5):
        assert (await jobs.ended(f"j{number}")).state is JobState.COMPLETED
    assert api.peak == 2


async def test_an_upstream_that_fails_costs_attempts_and_the_last_reason_is_told(
    jobs: JobRig, api: UpstreamApi
) -> None:
    api.answer = failing(401)
    await send(jobs, "j", max_attempts=2)
    job = await jobs.ended("j")
    assert (job.state, job.error_code, job.spent) == (JobState.FAILED, "job_attempts_exhausted", 2)
    assert "upstream_refused_key" in (job.error_message or "") and KEY not in (job.error_message or "")


async def test_a_body_that_the_upstream_refuses_fails_the_job_in_its_words(jobs: JobRig, api: UpstreamApi) -> None:
    api.answer = failing(400)
    await send(jobs, "j")
    job = await jobs.ended("j")
    assert (job.state, job.http_status, job.error_message) == (JobState.FAILED, 400, "theirs")


async def test_after_its_last_attempt_a_job_goes_on_to_its_fallback(jobs: JobRig, api: UpstreamApi) -> None:
    api.answer = half_a_stream
    await jobs.rig.ready("m-1")
    await send(jobs, "j", max_attempts=1, fallback=("m",))
    job = await jobs.ended("j")
    assert (job.state, job.model, job.fallback) == (JobState.COMPLETED, "m", "job_attempts_exhausted")
    assert (await jobs.answer("j"))["model"] == "m"
    assert len(api.requests) == 1


async def test_a_link_of_its_chain_that_was_removed_meanwhile_is_passed_over(jobs: JobRig, api: UpstreamApi) -> None:
    api.answer = half_a_stream
    await jobs.rig.ready("m-1")
    await send(jobs, "j", max_attempts=1, fallback=("removed", "m"))
    job = await jobs.ended("j")
    assert (job.state, job.model) == (JobState.COMPLETED, "m")


async def test_a_cancel_reaches_the_upstream(jobs: JobRig, api: UpstreamApi) -> None:
    async def never(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    api.answer = never
    await send(jobs, "j")
    await until(lambda: api.running == 1, "it runs")
    await Jobs(jobs.rig.client).cancel("j", "t")
    assert (await jobs.ended("j")).state is JobState.CANCELLED
    await until(lambda: api.running == 0, "the upstream saw the client go")


async def test_a_worker_without_the_key_leaves_them_alone(
    rig: RunRig, api: UpstreamApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UPSTREAM_KEY", raising=False)
    async with rig() as inner:
        await publish(inner, api)
        jobs = JobRig(inner, inner.paths.state / "no.log")
        await jobs.rig.ready("m-1")
        await send(jobs, "j")
        await jobs.submit("other")  # of the engine here: when it has run, the worker has looked
        await jobs.ended("other")
        assert (await jobs.job("j")).state is JobState.QUEUED and not api.requests
        await Jobs(inner.client).cancel("j", "t")
