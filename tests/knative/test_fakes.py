"""The stand-ins for Knative do what was measured on the real thing: bytes, statuses and times (times scaled down)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from rewarm.knative.names import HOLD_PATH
from tests.e2e.stack import until
from tests.knative.fakes.api import ApiServer
from tests.knative.fakes.knative import Knative, Revision
from tests.knative.fakes.pod import Pod
from tests.knative.fakes.timings import COLD_S, QUIET_S, Timings

pytestmark = pytest.mark.asyncio

APP = Path(__file__).parents[1] / "programs" / "pod_app.py"
PLACE = "model-m-0"
HOST = f"{PLACE}.rewarm.svc.cluster.local"
SCALE = 0.02  # 30 s are 0.6 s


@asynccontextmanager
async def serving(
    *knobs: str, warm: bool = True, concurrency: int = 0, timeout: float = 600, response_start: float = 300
) -> AsyncIterator[tuple[Knative, Revision, aiohttp.ClientSession]]:
    async def start(pod: Pod) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, str(APP), str(pod.port), *knobs)

    async with ApiServer().listening() as api, Knative(api, start, Timings(SCALE)).listening() as knative:
        revision = knative.apply(PLACE, concurrency)
        base = f"http://127.0.0.1:{knative.port}"
        async with aiohttp.ClientSession(base, headers={"Host": HOST}) as http:
            if warm:  # under the default limits: how fast this machine starts a program is not what is tried
                async with http.get("/answer") as answer:
                    assert answer.status == 200
            knative.timings = Timings(SCALE, timeout, response_start)
            yield knative, revision, http


async def test_it_scales_from_zero_for_a_request_without_a_byte_before_the_answer() -> None:
    async with serving(warm=False) as (knative, revision, http):
        assert revision.pod is None
        began = asyncio.get_running_loop().time()
        async with http.get("/answer") as answer:
            assert (answer.status, await answer.text()) == (200, "answer")
        assert asyncio.get_running_loop().time() - began >= COLD_S * SCALE * 0.75
        conditions = knative.api.objects["revisions"][revision.name]["status"]["conditions"]
        assert {"type": "Ready", "status": "True"}.items() <= conditions[-1].items(), "as it says at zero, too"


@pytest.mark.parametrize("trouble", ["unschedulable", "pull_error", "quota"])
async def test_a_pod_that_does_not_come_is_a_hang_until_the_limit(trouble: str) -> None:
    async with serving(warm=False, response_start=30) as (_, revision, http):
        setattr(revision.plan, trouble, "no")
        async with http.get("/answer") as answer:
            assert (answer.status, await answer.text()) == (504, "activator request timeout")


async def test_the_timeout_ends_a_stream_cleanly_with_its_text_after_it() -> None:
    async with serving(timeout=30) as (_, _, http), http.get("/stream") as answer:
        body = await answer.read()
        assert answer.status == 200
        assert body.startswith(b"data: 1\n\n")
        assert body.endswith(b"request timeout")


async def test_both_limits_run_from_the_arrival_at_the_activator() -> None:
    async with serving(warm=False, response_start=30) as (_, revision, http):
        revision.plan.hold_at = "node"

        async def ask() -> int:
            async with http.get("/answer") as answer:
                return answer.status

        asked = asyncio.create_task(ask())
        assert await asked == 504
        revision.plan.hold_at = ""
        await until(lambda: revision.pods[0].gone.is_set(), "the pod came up and was scaled straight back down")


async def test_a_response_that_is_late_is_a_504_and_early_headers_disarm_that() -> None:
    async with serving(response_start=30) as (_, _, http):
        async with http.get("/late") as answer:
            assert (answer.status, await answer.text()) == (504, "request timeout")
        async with http.get("/early-headers") as answer:
            assert (answer.status, await answer.text()) == (200, "late")


async def test_one_runs_ten_wait_and_the_next_is_told_that_the_queue_is_full() -> None:
    async with serving(concurrency=1) as (_, revision, http):

        async def ask() -> tuple[int, str]:
            async with http.get("/slow") as answer:
                return answer.status, await answer.text()

        asked = [asyncio.create_task(ask()) for _ in range(11)]
        await until(lambda: revision.inside == 11, "one runs, ten are queued")
        assert await ask() == (503, "pending request queue full")
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 11


async def test_an_app_that_is_down_is_a_502_and_one_that_dies_leaves_an_incomplete_body() -> None:
    async with serving() as (_, revision, http):
        with pytest.raises(aiohttp.ClientError):
            async with http.get("/die") as answer:
                await answer.read()
        assert revision.pod is not None
        revision.pod.ready.set()  # before anybody has noticed
        async with http.get("/answer") as answer:
            assert answer.status == 502


async def test_sigterm_comes_late_also_while_a_stream_runs_and_the_stream_goes_on_after_it() -> None:
    async with serving("--drain") as (knative, revision, http), http.get("/short-stream") as stream:
        assert await stream.content.readline() == b"data: 1\n"
        pod = knative.delete_pod(PLACE)
        body = await stream.read()
        assert body.endswith(b"data: end\n\n")
        await until(lambda: pod.gone.is_set(), "and then it is gone")
        assert pod.terminated_at is not None
        assert pod.deleted_at is not None
        assert pod.terminated_at - pod.deleted_at == pytest.approx(QUIET_S * SCALE, abs=0.3)
        assert revision.pod is None or revision.pod is not pod


async def test_the_grace_period_is_the_timeout_and_below_thirty_seconds_no_sigterm_is_seen() -> None:
    async with serving("--drain", timeout=20) as (knative, _, _):
        pod = knative.delete_pod(PLACE)
        await until(lambda: pod.gone.is_set(), "it is gone")
        assert pod.terminated_at is None
        assert pod.process is not None
        assert pod.process.returncode == -9


async def test_a_request_in_flight_keeps_the_pod_and_its_end_lets_it_go_after_the_window() -> None:
    async with serving() as (_, revision, http):
        async with http.get(HOLD_PATH) as held:
            await held.content.readany()
            pod = revision.pods[0]
            await asyncio.sleep(3 * Timings(SCALE).window_s)
            assert pod.deleted_at is None
        await until(lambda: pod.deleted_at is not None, "after the window")
        await until(lambda: pod.gone.is_set(), "after the drain")
