"""What a client sees of its job on a real fleet: the wait and the load as numbers that only rise, and every word once,
however often its connection is cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rewarm.states import LOAD_PHASES
from tests.e2e.conftest import EngineLog
from tests.e2e.stack import Stack, chat, fake, post, rising, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.slow]

PHASES = ["cold", *(phase.value for phase in LOAD_PHASES), "ready", "running"]


async def get(url: str, path: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.get(url + path) as answer:
        return answer.status, json.loads(await answer.read())


@contextlib.asynccontextmanager
async def stack_of(folder: Path, *knobs: str, **fields: Any) -> AsyncIterator[Stack]:
    async with Stack(folder, models={"m": fake(*knobs, slots=2, **fields)}) as stack:
        await stack.start_redis()
        yield stack


async def polled(url: str, body: dict[str, Any], within_s: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Hand a job in and look at it until it has ended: everything that was seen, and the result."""
    status, job, headers = await post(url, body, path="/v1/jobs")
    assert (status, job["status"], job["progress"]["phase"]) == (202, "queued", "cold")
    assert headers["location"] == job["status_url"]
    seen = [job]

    async def ended() -> bool:
        seen.append((await get(url, job["status_url"]))[1])
        return seen[-1]["ended_at"] is not None

    await until(ended, "the job has ended", within_s, every_s=0.03)
    assert seen[-1]["status"] == "completed", seen[-1]
    status, result = await get(url, job["result_url"])
    assert status == 200
    return seen, result


def check_progress(seen: list[dict[str, Any]]) -> None:
    """Honest to the end: phases in their order, at least four of them, and numbers that only rise."""
    shown = [one["progress"] for one in seen if one["progress"]]
    phases = list(dict.fromkeys(one["phase"] for one in shown))
    assert phases == [phase for phase in PHASES if phase in phases], "in their order, none twice"
    assert len(set(phases) & {phase.value for phase in LOAD_PHASES}) >= 4, phases
    fractions = [one["fraction"] for one in shown]
    assert rising(fractions), fractions
    assert fractions[0] == 0.0 and fractions[-1] == 1.0 and len(set(fractions)) >= 8, fractions
    assert {one["status"] for one in seen} >= {"queued", "loading", "in_progress", "completed"}
    assert rising([float(one["tokens"]) for one in seen])


@pytest.mark.asyncio
async def test_a_job_polled_through_a_cold_load(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(bytes(24 * 2**20))
    slow = ("--start-delay", "0.7", "--read-file", str(weights / "model.safetensors"), "--read-mbps", "20")
    answers = ("--first-token-delay", "0.4", "--token-delay", "0.05", "--tokens", "40")
    async with stack_of(tmp_path / "stack", *slow, *answers, source=str(weights)) as stack:
        gateway = await stack.start_gateway()
        await stack.start_worker()
        seen, result = await polled(gateway.url, chat("m"), 60)
    check_progress(seen)
    assert text_of(result).startswith("The capital of France is Paris")
    shown = [one["progress"] for one in seen if one["progress"]]
    assert any(one["eta_s"] is not None for one in shown if one["phase"] == "restoring")
    assert len({one["tokens"] for one in seen}) >= 4, "tokens are counted while it runs"


async def some_lines(url: str, path: str, last: str | None, count: int) -> AsyncIterator[tuple[str | None, str]]:
    """(id, event or data) of the next events; the connection is cut after ``count`` pieces of output."""
    sent = {"Last-Event-ID": last} if last else {}
    async with aiohttp.ClientSession() as http, http.get(url + path, headers=sent) as answer:
        assert answer.status == 200, await answer.read()
        given = 0
        id_, name, data = None, "message", ""
        async for raw in answer.content:
            line = raw.decode().rstrip("\n")
            if line.startswith("id: "):
                id_ = line[4:]
            elif line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
            elif not line:
                yield (id_, data) if name == "message" else (None, name)
                given += name == "message"
                id_, name, data = None, "message", ""
                if given == count:
                    answer.close()  # whatever has been sent beyond this is lost
                    return


@pytest.mark.asyncio
async def test_a_reader_that_is_cut_ten_times_misses_and_doubles_nothing(tmp_path: Path) -> None:
    async with stack_of(tmp_path / "stack", "--token-delay", "0.03", "--tokens", "120") as stack:
        gateways = [await stack.start_gateway("gateway-1"), await stack.start_gateway("gateway-2")]
        await stack.start_worker()
        _, job, _ = await post(gateways[0].url, chat("m"), path="/v1/jobs")
        output: list[tuple[str, str]] = []
        names: list[str] = []
        cuts = 0
        while "end" not in names:
            # Each time at the other gateway: a place in the stream is of the fleet.
            url = gateways[cuts % 2].url
            last = output[-1][0] if output else None
            async for id_, what in some_lines(url, job["events_url"], last, 9 if cuts < 10 else 1000):
                if id_ is None:
                    names.append(what)
                else:
                    output.append((id_, what))
            cuts += 1
        _, result = await get(gateways[0].url, job["result_url"])
    assert cuts == 11, "ten cuts, and the rest"
    ids = [id_ for id_, _ in output]
    assert len(set(ids)) == len(ids)
    assert "restart" not in names
    deltas = [json.loads(data)["choices"][0]["delta"].get("content") or "" for _, data in output]
    assert "".join(deltas) == text_of(result)


@pytest.mark.asyncio
async def test_what_was_handed_off_runs_exactly_once(tmp_path: Path, engine_log: EngineLog) -> None:
    """Two clients cannot wait for the load: one has no patience left, the other's gateway is stopped."""
    knobs = ("--start-delay", "4", "--log", str(engine_log.path))
    async with stack_of(tmp_path / "stack", *knobs) as stack:
        gateways = [await stack.start_gateway("gateway-1"), await stack.start_gateway("gateway-2")]
        await stack.start_worker()
        ask = {"X-Rewarm-Hand-Off": "job", "X-Rewarm-Progress": "none"}
        async with asyncio.TaskGroup() as group:
            patient = group.create_task(post(gateways[0].url, chat("m", user="patient"), ask))
            status, body, _ = await post(
                gateways[1].url, chat("m", user="hasty"), {**ask, "X-Rewarm-Max-Wait": "500ms"}
            )
            assert (status, body["error"]["code"]) == (503, "model_loading")
            told = [body["job"]]
            group.create_task(gateways[0].terminate())
        status, body, _ = patient.result()
        assert (status, body["error"]["code"]) == (503, "shutting_down")
        told.append(body["job"])
        for job in told:

            async def ended(job: dict[str, Any] = job) -> bool:
                return bool((await get(gateways[1].url, job["status_url"]))[1]["ended_at"])

            await until(ended, "the job has ended", 30)
            status, result = await get(gateways[1].url, job["result_url"])
            assert status == 200 and "Paris" in text_of(result)
    assert engine_log.count("start") == engine_log.count("end") == 2, engine_log.lines()
