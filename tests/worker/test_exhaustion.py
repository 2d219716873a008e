"""A worker that has no file descriptors left for a while: what serves goes on, loads are tried again, nothing stays."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewarm.states import FailureReason, ReplicaState
from tests.worker.conftest import RunRig, until
from tests.worker.test_agent import engine_pids
from worker.exhaustion import exhausted, fault_of

pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]
S = ReplicaState


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """In this process, where the agent of a rig runs too."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)


@pytest.mark.asyncio
async def test_a_load_without_descriptors_is_the_workers_fault_and_leaves_nothing(rig: RunRig) -> None:
    async with rig() as r:
        await until(lambda: r.agent._around.watch.last, "it has counted its memory")
        with no_descriptors():
            await r.want("m-1")
            report = await r.reaches("m-1", S.FAILED)
            assert report.failure.reason is FailureReason.AGENT_LOST, "so it is tried again"
            assert "Too many open files" in report.failure.message
        await until(lambda: "m-1" not in r.agent._lives, "it has ended, once its processes could be looked for")
        assert engine_pids("m-1") == []
        await r.ready("m-2")


@pytest.mark.asyncio
async def test_without_descriptors_what_serves_goes_on(rig: RunRig) -> None:
    async with rig(memory_limit="1GiB") as r:
        await r.ready()
        replica = r.agent._replicas["m-1"]
        with no_descriptors():
            with pytest.raises(OSError, match="Too many open files"):
                await replica.measure()
            replica._measure_now = True
            await until(lambda: not replica._measure_now, "its own look at it failed as well")
        report = await r.report("m-1")
        assert report.state is S.READY
        status, _, _ = await r.chat(report.endpoint)
        assert status == 200


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_what_passes_is_told_from_what_is_wrong_with_a_model(number: int) -> None:
    error = ValueError("config.json cannot be read")
    error.__cause__ = OSError(number, os.strerror(number))
    assert exhausted(error)
    assert fault_of(error, FailureReason.WEIGHTS_CORRUPT, str(error)).reason is FailureReason.AGENT_LOST
    missing = FileNotFoundError(errno.ENOENT, "no such file")
    assert fault_of(missing, FailureReason.WEIGHTS_MISSING, "gone").reason is FailureReason.WEIGHTS_MISSING
