"""What a wake leaves behind on a real fleet: a receipt with those that waited for it, spans, and a better guess."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rewarm.states import LOAD_PHASES
from tests.e2e.stack import ROOT, Process, Stack, chat, fake, post, until
from tests.e2e.test_jobs_progress import get
from tests.rewarm.test_tracing import collector

pytestmark = [pytest.mark.redis, pytest.mark.slow]


async def ps_last(gateway: Process, *options: str) -> str:
    """What ``rewarm ps --last`` prints."""
    argv = [sys.executable, "-m", "rewarm", "ps", "--url", gateway.url, "--last", *options]
    program = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0
    return out.decode()


async def asleep(stack: Stack, gateway: Process) -> None:
    await post(gateway.url, {"kind": "sleep", "target": "m"}, path="/rewarm/v1/commands")

    async def gone() -> bool:
        return set(await stack.replica_states(gateway, "m")) <= {"stopped"}

    await until(gone, "the replica is gone")


@pytest.mark.asyncio
async def test_a_request_and_a_job_that_waited_are_on_the_receipt_of_their_wake(tmp_path: Path) -> None:
    async with Stack(tmp_path, models={"m": fake("--start-delay", "1.0", slots=2)}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        assert "no model has been woken yet" in await ps_last(gateway)

        _, job, _ = await post(gateway.url, chat("m"), path="/v1/jobs")
        status, _, headers = await post(gateway.url, chat("m"))
        assert (status, headers["x-rewarm-start"]) == (200, "cold")

        async def told() -> Any:
            (wake,) = json.loads(await ps_last(gateway, "1", "--json"))
            return wake if wake["waited"] == 2 else None

        wake = await until(told, "both are on the receipt", every_s=0.5)
        assert {one["id"] for one in wake["waiters"]} == {job["id"], headers["x-request-id"]}
        assert all(0.9 < one["waited_s"] < 60 for one in wake["waiters"])
        assert (wake["model"], wake["tier"], wake["worker"], wake["attempt"]) == ("m", "cold", "worker-1", 1)
        assert wake["cause"], "the leader said why"
        phases = [timing["phase"] for timing in wake["timings"]]
        assert phases == [phase.value for phase in LOAD_PHASES if phase.value in phases]
        assert len(phases) >= 3
        assert wake["duration_s"] == pytest.approx(sum(one["duration_s"] for one in wake["timings"]), abs=0.01)

        receipt = (await get(gateway.url, f"/v1/requests/{headers['x-request-id']}"))[1]
        assert receipt["wake"]["ready_at_ms"] == wake["ready_at_ms"]

        async def shown() -> bool:
            done = (await get(gateway.url, f"/v1/jobs/{job['id']}"))[1]
            return bool(done["status"] == "completed" and done["wake"]["ready_at_ms"] == wake["ready_at_ms"])

        await until(shown, "the job shows the wake that it waited for")
        await asleep(stack, gateway)
        assert await shown(), "also when its replica is gone"
        table = await ps_last(gateway)
        assert "starting" in table
        assert headers["x-request-id"] in table


@pytest.mark.asyncio
async def test_the_second_wake_is_expected_to_take_what_the_first_one_took(tmp_path: Path) -> None:
    """Half a minute less than what is expected of a command that nobody has seen start."""
    async with Stack(tmp_path, models={"m": fake("--start-delay", "0.5", slots=2)}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        worker = await stack.start_worker()
        await post(gateway.url, chat("m"))
        await asleep(stack, gateway)
        await worker.terminate()
        await stack.start_worker()  # what it remembers lies in Redis
        await post(gateway.url, chat("m"))

        async def two() -> Any:
            wakes = json.loads(await ps_last(gateway, "--json"))
            return wakes if len(wakes) == 2 else None

        wakes = await until(two, "both wakes are told", every_s=0.5)
        assert all(wake["eta_error"] is not None for wake in wakes)
        assert abs(wakes[0]["eta_error"]) < 1.5, wakes


@pytest.mark.asyncio
async def test_gateway_and_worker_send_their_spans_to_one_collector(tmp_path: Path) -> None:
    with collector() as (endpoint, seen):
        async with Stack(tmp_path, models={"m": fake(slots=2)}, tracing={"endpoint": endpoint}) as stack:
            await stack.start_redis()
            gateway = await stack.start_gateway()
            worker = await stack.start_worker()
            _, _, headers = await post(gateway.url, chat("m"))
            assert await worker.terminate() == 0
            assert await gateway.terminate() == 0
        roles: dict[str, dict[str, Any]] = {}
        for _, resource, span in seen:
            role = next(one.value.string_value for one in resource.attributes if one.key == "rewarm.role")
            roles.setdefault(role, {})[span.name] = span
        root, wake = roles["gateway"]["POST /v1/chat/completions"], roles["worker"]["wake m"]
        told = {one.key: one.value.string_value for one in root.attributes}
        assert told["rewarm.request"] == headers["x-request-id"]
        assert {"queue", "engine", "wake m", "starting", "warming", "verifying"} <= set(roles["gateway"])
        assert [link.span_id for link in root.links] == [wake.span_id], "the wake's own trace is a click away"
