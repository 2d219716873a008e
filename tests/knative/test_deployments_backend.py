"""The backend that scales Deployments: one GPU, two models that take turns, and pods that end in good order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rewarm.states import ReplicaState
from tests.e2e.stack import Event, fake, until
from tests.knative.cloud import answered, ask, kubernetes
from tests.knative.test_knative_backend import asking, command, long_stream

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.timeout(300)]


async def test_two_models_take_turns_on_one_gpu(tmp_path: Path) -> None:
    """Room that the other one holds is waited for, and the other one gives it up once it is idle."""
    models = {"a": fake(idle_after="1h"), "b": fake(idle_after="1h")}
    async with kubernetes(tmp_path, models) as (cloud, cluster):
        cluster.one_gpu = True
        gateway = await cloud.start_cluster_gateway("deployment")
        await until(lambda: not cluster.pods, "what the first apply started, and nobody asked for, is gone", 60)
        for turn, model in enumerate("ab"):
            assert answered(await ask(gateway, model)), f"turn {turn}: {model}"
            assert list(cluster.pods) == [f"model-{model}-0"]


async def test_a_stream_outlives_the_deletion_of_its_pod(tmp_path: Path) -> None:
    """The preStop hook drains before SIGTERM; a request that comes meanwhile gets the next pod."""
    async with kubernetes(tmp_path, {"chat": fake()}) as (cloud, cluster):
        gateway = await cloud.start_cluster_gateway("deployment")
        lines: list[Event] = []
        running = asyncio.create_task(asking(gateway, lines, **long_stream(5)))
        await until(lambda: any(event.content for event in lines), "the stream runs", 60)
        pod = cluster.delete_pod("model-chat-0")
        another = asyncio.create_task(ask(gateway))
        await running
        assert answered(lines), lines[-3:]
        assert answered(await another)
        await until(lambda: pod.gone.is_set(), "the old pod is gone")
        assert pod.process is not None
        assert pod.process.returncode == 0, "it ended by itself"
        assert answered(await ask(gateway))
        assert [report.state for report in await cloud.reports("chat")] == [ReplicaState.READY]
        await command(gateway, "sleep", "chat")
        await until(lambda: not cluster.pods, "scaled to zero", 60)


async def test_a_quota_is_told_at_once(tmp_path: Path) -> None:
    async with kubernetes(tmp_path, {"chat": fake()}) as (cloud, cluster):
        gateway = await cloud.start_cluster_gateway("deployment")
        await until(lambda: not cluster.pods, "at zero", 60)
        cluster.plans["model-chat-0"].quota = 'pods "x" is forbidden: exceeded quota: gpus'
        (event,) = await ask(gateway)
        assert "exceeded quota: gpus" in event.line
        assert "quota" in event.line
