"""What goes wrong around a wake: the leader dies, the pod is deleted, the API server is away or refuses.

Whoever waits is answered all the same, by one pod at a time.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.stack import Event, fake, until
from tests.knative.cloud import answered, comments, knative
from tests.knative.fakes.timings import Timings
from tests.knative.test_knative_backend import PLACE, TALKATIVE, asking

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.timeout(300)]


async def test_a_leader_that_dies_in_the_middle_of_a_wake_loses_neither_pod_nor_request(tmp_path: Path) -> None:
    """The next one opens the wake-up request anew before Knative's window is over."""
    slow = Timings(scale=0.5, timeout=120, response_start=120)  # a window of 7.5 s
    async with knative(tmp_path, {"chat": fake()}, timings=slow, sections=TALKATIVE) as (cloud, cluster):
        first = await cloud.start_cluster_gateway("knative")
        second = await cloud.start_cluster_gateway("knative", name="gateway-2")
        revision = cluster.revisions[PLACE]
        revision.plan.hold_at = "pull"
        lines: list[Event] = []
        waits = asyncio.create_task(asking(second, lines))
        await until(lambda: "its image comes" in comments(lines), "the pod is on its way", 60)
        held = len(cluster.seen)
        await first.kill()
        await until(lambda: len(cluster.seen) > held, "the next leader asks for the pod too")
        revision.plan.hold_at = ""
        await waits
        assert answered(lines), lines[-3:]
        assert len(revision.pods) == 1


async def test_a_pod_that_is_deleted_while_it_loads_is_replaced_and_the_request_waits_on(tmp_path: Path) -> None:
    async with knative(tmp_path, {"chat": fake("--start-delay", "2")}, sections=TALKATIVE) as (cloud, cluster):
        gateway = await cloud.start_cluster_gateway("knative")
        lines: list[Event] = []
        waits = asyncio.create_task(asking(gateway, lines))
        await until(lambda: "phase=starting" in comments(lines), "it loads", 60)
        first = cluster.delete_pod(PLACE)
        await waits
        assert answered(lines), lines[-3:]
        assert len(cluster.revisions[PLACE].pods) == 2
        await until(first.gone.is_set, "the first one ends by itself", 60)


@pytest.mark.parametrize("status", [403, 500])
async def test_a_gateway_that_sees_nothing_of_the_cluster_still_wakes_it(tmp_path: Path, status: int) -> None:
    """The wake-up request goes through Knative, not the API server: only the words for who waits are missing."""
    async with knative(tmp_path, {"chat": fake()}, sections=TALKATIVE) as (cloud, cluster):
        cloud.api.refuse = dict.fromkeys(cloud.api.objects, status)
        plan = cluster.revisions[PLACE].plan
        plan.hold_at = "pull"
        gateway = await cloud.start_cluster_gateway("knative")
        told: list[Event] = []
        waits = asyncio.create_task(asking(gateway, told))
        await until(lambda: cluster.revisions[PLACE].pods, "a pod is made", 60)
        await until(lambda: "pods" in cloud.api.refused, "it has tried to see them", 60)
        if status == 403:
            await until(lambda: "pods cannot be seen" in comments(told), "who waits is told why no more is said", 60)
        plan.hold_at = ""
        await waits
        assert answered(told), told[-3:]
        assert ("pods cannot be seen" in comments(told)) is (status == 403)
        assert "place_missing" not in comments(told), "what cannot be seen is not taken to be missing"
        assert len(cluster.revisions[PLACE].pods) == 1
