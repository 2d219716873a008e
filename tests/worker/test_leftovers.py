"""What a killed agent's replicas started elsewhere is stopped by the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewarm.messages import ReplicaSpec
from worker.engines.hostfile import HostFile
from worker.leftovers import stop_elsewhere


def host(tmp_path: Path, *command: str, grace_s: float = 5.0) -> HostFile:
    spec = ReplicaSpec(
        model="m", engine="command", served_names=("m",), slots=1, stop_command=command, stop_grace_s=grace_s
    )
    return HostFile(replica="m-1", agent_pid=1, spec=spec, socket="", report="", token="", cwd=str(tmp_path))


@pytest.mark.asyncio
async def test_its_stop_command_is_run(tmp_path: Path) -> None:
    await stop_elsewhere([host(tmp_path, "touch", "stopped")])
    assert (tmp_path / "stopped").exists()


@pytest.mark.asyncio
async def test_one_that_needs_what_died_with_its_host_is_not(tmp_path: Path) -> None:
    """The pid may be another program's by now."""
    await stop_elsewhere([host(tmp_path, "touch", "${PID}"), host(tmp_path, "touch", "${PORT}")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.asyncio
async def test_one_that_fails_or_hangs_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    await stop_elsewhere([host(tmp_path, "/nonexistent"), host(tmp_path, "sleep", "600", grace_s=0.2)])
