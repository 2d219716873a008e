"""A runaway engine is its own end: by the kernel in a control group, by our watch without one. Others go on."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from rewarm.states import FailureReason, ReplicaState
from tests.worker.conftest import Rig, RunRig, until
from worker.limits.cgroups import find_groups

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90), pytest.mark.asyncio]
S = ReplicaState

HERE = find_groups("a test's look") is not None
"""Whether this user may make control groups here. Without them both cases are the watch's."""


@pytest.mark.parametrize("cgroups", ["auto", "off"])
async def test_one_that_grows_while_it_serves_is_ended_for_its_limit_and_its_neighbour_is_not(
    rig: RunRig, cgroups: str
) -> None:
    worker = json.dumps({"cgroups": cgroups})
    async with rig("--token-delay", "0.05", worker=worker, memory_limit="260MiB") as r:
        one, other = await r.ready("grows-1"), await r.ready("stays-1")
        assert group_of(r, "grows-1") == (HERE and cgroups == "auto")
        growing = asyncio.create_task(r.stream(one.endpoint, fake={"tokens": 400, "grow_after": 2}))
        failed = await r.reaches("grows-1", S.FAILED, 60)
        await asyncio.wait((growing,))
        if growing.exception() is None:  # its beginning came, before it died
            growing.result().abort()
        assert failed.failure.reason is FailureReason.MEMORY_LIMIT
        assert "its memory limit of 260.0 MiB" in failed.failure.message
        assert "raise `memory_limit`" in failed.failure.message
        assert (await r.chat(other.endpoint))[0] == 200
        assert (await r.report("stays-1")).state is S.READY
        await r.unwant("grows-1")


async def test_one_that_cannot_even_load_within_its_limit(rig: RunRig) -> None:
    async with rig("--allocate-mb", "2000", memory_limit="300MiB") as r:
        await r.want("grows-1")
        report = await r.reaches("grows-1", S.FAILED, 60)
        assert report.failure.reason is FailureReason.MEMORY_LIMIT


async def test_cpus_bound_what_an_engine_uses(rig: RunRig) -> None:
    async with rig(cpus=0.5) as r:
        await r.ready("grows-1")
        host = (await r.report("grows-1")).pid
        groups = r.agent._around.groups
        if groups is not None and "cpu" in groups.above:
            folder = groups.above["cpu"] / f"rewarm-{groups.mark}-grows-1"
            quota = folder / ("cpu.max" if groups.version == 2 else "cpu.cfs_quota_us")
            assert quota.read_text().split()[0] == "50000"
            assert str(host) in (folder / "cgroup.procs").read_text().split()
        else:
            assert len(os.sched_getaffinity(host)) == 1


async def test_nothing_of_a_group_is_left_when_its_replica_is_gone(rig: RunRig) -> None:
    async with rig() as r:
        report = await r.ready("grows-1")
        os.kill(report.pid, signal.SIGKILL)
        await r.reaches("grows-1", S.FAILED)
        await until(lambda: not group_of(r, "grows-1"), "its control group is gone")


def group_of(r: Rig, replica: str) -> bool:
    groups = r.agent._around.groups
    if groups is None:
        return False
    return any((above / f"rewarm-{groups.mark}-{replica}").is_dir() for above in groups.above.values())
