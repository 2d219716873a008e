"""The Knative backend against a cluster that behaves as measured: real gateway, real workers; wakes, failures, ends."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.stack import Event, Process, Stack, chat, fake, post, stream, text_of, until
from tests.knative.cloud import answered, ask, comments, knative
from tests.knative.fakes.knative import Knative
from tests.knative.fakes.pod import Plan
from tests.knative.fakes.timings import Timings

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.timeout(300)]

PLACE = "model-chat-0"
LANES, CYCLES = (int(part) for part in os.environ.get("REWARM_TEST_CYCLES", "1x2").split("x"))
"""Models at once, and cycles of each. A hundred: REWARM_TEST_CYCLES=5x20 python -m pytest tests/knative -k cycles"""

TALKATIVE: dict[str, Any] = {
    "gateway": {"listen": "127.0.0.1:0", "holding": {"stream_status_after": "0s", "comment_every": "0.1s"}}
}


async def asking(gateway: Process, lines: list[Event], model: str = "chat", **fields: Any) -> None:
    async for event in stream(gateway.url, chat(model, "hello", **fields)):
        lines.append(event)  # noqa: PERF401 -- who waits looks at the lines while they come


def long_stream(seconds: float) -> dict[str, Any]:
    """A stream that takes so long, once it has begun."""
    return {"fake": {"tokens": 100, "token_delay": seconds / 100}}


async def command(gateway: Process, kind: str, target: str) -> None:
    async with aiohttp.ClientSession() as http:
        order = {"kind": kind, "target": target}
        async with http.post(f"{gateway.url}/rewarm/v1/commands", json=order) as answer:
            assert answer.status < 300, await answer.text()


async def at_zero(cluster: Knative) -> None:
    def gone() -> bool:
        return all(pod.gone.is_set() for revision in cluster.revisions.values() for pod in revision.pods)

    await until(gone, "all pods are gone", 60)


# --- from zero -------------------------------------------------------------------------------------------------------


async def test_a_request_wakes_a_pod_and_is_told_every_step_to_its_answer(tmp_path: Path) -> None:
    async with knative(tmp_path, {"chat": fake("--start-delay", "1")}, sections=TALKATIVE) as (cloud, cluster):
        gateway = await cloud.start_cluster_gateway("knative")
        plan = cluster.revisions[PLACE].plan
        plan.hold_at = "node"
        lines: list[Event] = []
        running = asyncio.create_task(asking(gateway, lines))
        for step, then in (
            ("waits for a node", "pull"),
            ("its image comes: Pulling image", "worker"),
            ("its worker starts", ""),
            ("phase=starting", ""),
        ):
            await until(lambda step=step: step in comments(lines), step, 60)
            plan.hold_at = then
        await running
        assert answered(lines), lines
        assert cluster.revisions[PLACE].in_flight == 1, "one request of the leader's keeps the pod"
        assert not any("/v1/" in asked for asked in cluster.seen), "no request of a user goes through the activator"


async def test_what_a_pod_took_is_in_the_receipt_and_told_of_the_next_one(tmp_path: Path) -> None:
    async with knative(tmp_path, {"chat": fake()}, sections=TALKATIVE) as (cloud, cluster):
        gateway = await cloud.start_cluster_gateway("knative")
        plan = cluster.revisions[PLACE].plan
        plan.hold_at = "pull"
        first = asyncio.create_task(post(gateway.url, chat("chat", "hello")))
        await until(lambda: cluster.revisions[PLACE].pods, "a pod is made", 60)
        began, held_s = time.monotonic(), 2.0  # it has been wanted a little longer
        await until(lambda: time.monotonic() - began > held_s, "its image takes a while")
        plan.hold_at = ""
        status, _, headers = await first
        took = timings(headers["server-timing"])
        assert status == 200
        assert held_s <= took["pod_pending"] / 1000 <= took["wake"] / 1000 <= took["queue"] / 1000 + 0.1
        assert list(took)[:3] == ["queue", "wake", "pod_pending"], "the first phase of the wake"

        await command(gateway, "sleep", "chat")
        await at_zero(cluster)
        lines: list[Event] = []
        plan.hold_at = "pull"
        second = asyncio.create_task(asking(gateway, lines))
        await until(lambda: "phase=pod_pending" in comments(lines), "the client hears of the pod", 60)
        plan.hold_at = ""
        await second
        told = [line for line in comments(lines).splitlines() if "phase=pod_pending" in line]
        assert any("eta_s=" in line for line in told), told
        shares = [float(line.split()[2].rstrip("%")) for line in comments(lines).splitlines() if "loading" in line]
        assert shares == sorted(shares), "and goes on where the pod's worker takes over"


def timings(header: str) -> dict[str, float]:
    """``Server-Timing`` as milliseconds by name."""
    parts = (part.strip().split(";dur=") for part in header.split(","))
    return {name: float(value.split(";")[0]) for name, value in (part for part in parts if len(part) == 2)}


async def test_what_keeps_a_pod_from_coming_is_told_within_three_seconds(tmp_path: Path) -> None:
    plans: dict[str, dict[str, Any]] = {
        "taint": {"unschedulable": "0/3 nodes are available: 3 node(s) had untolerated taint {gpu: yes}."},
        "crash": {"crash": 3},
        "pull": {"pull_error": "Back-off pulling image"},
        "quota": {"quota": 'pods "x" is forbidden: exceeded quota: gpus, used: 1, limited: 1'},
        "missing": {},
    }
    reasons = ("unschedulable", "crash_loop", "image_pull", "quota", "place_missing")
    models = {name: fake() for name in plans}
    models |= {"covered": fake(fallback=["spare"]), "spare": fake()}
    async with knative(tmp_path, models) as (cloud, cluster):
        cluster.revisions["model-covered-0"].plan.unschedulable = "0/3 nodes are available"
        for name, plan in plans.items():
            cluster.revisions[f"model-{name}-0"].plan = Plan(**plan)
        cloud.api.delete("services", "model-missing-0")
        del cluster.revisions["model-missing-0"]
        gateway = await cloud.start_cluster_gateway("knative")

        async def one(name: str) -> tuple[float, int, dict[str, Any]]:
            began = time.monotonic()
            status, body, _ = await post(gateway.url, chat(name, "hello"))
            return time.monotonic() - began, status, body

        for (took_s, status, body), name, reason in zip(
            await asyncio.gather(*map(one, plans)), plans, reasons, strict=True
        ):
            assert (status, body["error"]["code"]) == (500, "model_load_failed"), (name, body)
            assert reason in str(body), (name, body)
            assert took_s < 3, f"{name}: {took_s:.1f} s"
        status, body, headers = await post(gateway.url, chat("covered", "hello"))
        assert (status, headers["x-rewarm-model"], body["model"]) == (200, "spare", "spare"), (
            "then its fallback answers"
        )
        await command(gateway, "sleep", "spare")
        await at_zero(cluster)


async def test_a_pod_that_takes_longer_than_knatives_limits_is_not_scaled_back_down(tmp_path: Path) -> None:
    """Both limits run from the wake-up request's arrival: it is asked for anew before, and the pod comes up once."""
    short = Timings(scale=0.05, timeout=60, response_start=40, window=15)  # 3 s, 2 s, 0.75 s
    sections = {"knative": {"response_start": "2s"}}
    async with knative(tmp_path, {"chat": fake("--start-delay", "3")}, timings=short, sections=sections) as (
        cloud,
        cluster,
    ):
        gateway = await cloud.start_cluster_gateway("knative")
        plan = cluster.revisions[PLACE].plan
        plan.hold_at = "pull"
        lines: list[Event] = []
        running = asyncio.create_task(asking(gateway, lines))
        await until(lambda: len(cluster.seen) >= 4, "the wake-up request was renewed", 30)
        plan.hold_at = ""
        await running
        assert answered(lines), lines
        held = len(cluster.seen)
        await until(lambda: len(cluster.seen) > held + 1, "and is while the pod serves", 30)
        assert len(cluster.revisions[PLACE].pods) == 1


# --- to zero ---------------------------------------------------------------------------------------------------------


async def test_streams_outlive_a_scale_down_and_the_deletion_of_their_pod(tmp_path: Path) -> None:
    """SIGTERM comes late, and streams run on after it."""
    async with knative(tmp_path, {"chat": fake(idle_after="1s")}) as (cloud, cluster):
        gateway = await cloud.start_cluster_gateway("knative")
        lines: list[Event] = []
        running = asyncio.create_task(asking(gateway, lines, **long_stream(6)))
        await until(lambda: any(event.content for event in lines), "the stream runs", 60)
        await command(gateway, "drain", "chat")
        await running
        assert answered(lines), "a scale-down waits for it"
        await at_zero(cluster)

        lines.clear()
        running = asyncio.create_task(asking(gateway, lines, **long_stream(6)))
        await until(lambda: any(event.content for event in lines), "the next stream runs", 60)
        pod = cluster.delete_pod(PLACE)
        another = asyncio.create_task(ask(gateway))
        await until(lambda: pod.terminated_at is not None, "SIGTERM")
        assert pod.terminated_at is not None
        assert pod.deleted_at is not None
        assert pod.terminated_at - pod.deleted_at >= cloud.timings.quiet_s, "late, as measured"
        assert not running.done(), "and the stream runs on"
        await running
        assert answered(lines), lines[-3:]
        assert answered(await another), "a request that came meanwhile is served, by the next pod if need be"
        await at_zero(cluster)


@pytest.mark.slow
async def test_streams_of_a_real_minute_outlive_all_three_ends_of_their_pods(tmp_path: Path) -> None:
    """Knative's own times: SIGTERM 30 s late, a window of 15 s. One pod is deleted, one scaled down by Knative, of one
    the leader wants the end."""
    real = Timings(timeout=120, response_start=120)
    models = {end: fake(idle_after="1s") for end in ("deleted", "scaled", "unwanted")}
    async with knative(tmp_path, models, timings=real) as (cloud, cluster):
        gateway = await cloud.start_cluster_gateway("knative")
        lines: dict[str, list[Event]] = {model: [] for model in models}
        running = [asyncio.create_task(asking(gateway, lines[m], m, **long_stream(60))) for m in models]
        for model in models:
            await until(lambda model=model: any(e.content for e in lines[model]), f"{model}: the stream runs", 60)
        pods = {model: cluster.revisions[f"model-{model}-0"].pods[0] for model in models}
        cluster.delete_pod("model-deleted-0")
        cluster.cut_off("model-scaled-0")
        await command(gateway, "drain", "unwanted")
        for model in ("deleted", "scaled"):
            pod = pods[model]
            await until(lambda pod=pod: pod.terminated_at is not None, f"{model}: SIGTERM", 60)
            assert pod.terminated_at is not None and pod.deleted_at is not None
            assert pod.terminated_at - pod.deleted_at >= 30
        assert not any(task.done() for task in running), "and the streams run on"
        await asyncio.gather(*running)
        for model, told in lines.items():
            assert answered(told), (model, told[-3:])
            contents = [event for event in told if event.content]
            assert contents[-1].at - contents[0].at >= 55, model
        for model in ("deleted", "scaled"):
            await until(pods[model].gone.is_set, f"{model}: its pod ends by itself")
            process = pods[model].process
            assert process is not None and process.returncode == 0


@pytest.mark.timeout(120 + 30 * LANES * CYCLES)
async def test_many_cycles_from_zero_to_one_and_back_lose_no_request(tmp_path: Path) -> None:
    models = {f"m{lane}": fake(idle_after="0.2s") for lane in range(LANES)}
    async with knative(tmp_path, models) as (cloud, cluster):
        gateway = await cloud.start_cluster_gateway("knative")

        async def lane(model: str) -> None:
            pods = cluster.revisions[f"model-{model}-0"].pods
            for cycle in range(CYCLES):
                both = await asyncio.gather(ask(gateway, model), post(gateway.url, chat(model, "hello")))
                assert answered(both[0]), (model, cycle, both[0][-3:])
                assert both[1][0] == 200, (model, cycle, both[1])
                # Every other time the next request meets a pod on its way out.
                end = "deleted_at" if cycle % 2 else "terminated_at"
                await until(lambda end=end: getattr(pods[-1], end) is not None, "scaled down", 120)
            assert len(pods) >= CYCLES

        await asyncio.gather(*map(lane, models))
        await at_zero(cluster)


async def test_another_leader_takes_over_without_losing_the_pod(tmp_path: Path) -> None:
    async with knative(tmp_path, {"chat": fake()}, timings=Timings(scale=0.5, timeout=120, response_start=120)) as (
        cloud,
        cluster,
    ):
        first = await cloud.start_cluster_gateway("knative")
        second = await cloud.start_cluster_gateway("knative", name="gateway-2")
        assert answered(await ask(first))
        await first.kill()
        assert answered(await ask(second))
        await until(lambda: cluster.revisions[PLACE].in_flight == 1, "the next leader holds it", 30)
        assert len(cluster.revisions[PLACE].pods) == 1


async def test_one_file_for_a_machine_and_for_a_cluster(tmp_path: Path) -> None:
    async with knative(tmp_path / "cluster", {"chat": fake()}) as (cloud, _):
        before = cloud.config_path.read_bytes()
        gateway = await cloud.start_cluster_gateway("knative")
        there = await post(gateway.url, chat("chat", "hello"))
        alone = Stack(tmp_path / "machine", {})
        async with alone:
            env = {"XDG_STATE_HOME": str(tmp_path / "machine")}
            port = cloud.listen_port
            serve = (sys.executable, "-m", "rewarm", "serve", str(cloud.config_path))
            served = await alone.spawn("serve", *serve, port=port, env=env)
            await alone.healthy(served)
            here = await post(served.url, chat("chat", "hello"))
        assert (there[0], text_of(there[1])) == (here[0], text_of(here[1])) == (200, text_of(here[1]))
        assert cloud.config_path.read_bytes() == before
