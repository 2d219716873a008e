"""How a server by command line goes wrong: each way has its reason and words, and nothing of it is left."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from rewarm.states import FailureReason, ReplicaState
from tests.worker.conftest import RunRig, fake_command, until
from tests.worker.test_agent import engine_pids

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.redis, pytest.mark.timeout(90)]
S = ReplicaState
F = FailureReason

REPLICA = f"m-{os.getpid()}"
"""No two test runs of one machine may share a name: what is left of a replica is found, and killed, by its name."""


def bad(way: str) -> list[str]:
    return [sys.executable, str(ROOT / "tests" / "programs" / "bad_server.py"), way, "--port", "${PORT}"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("way", "reason", "words"),
    [
        ("daemon", F.START_REFUSED, "went into the background"),
        ("done", F.ENGINE_EXITED, "exited with status 0: `cmd` must run for as long as it serves"),
        ("elsewhere", F.STALLED, "is closed; the command listens on"),
        ("mute", F.STALLED, "/health answers nothing"),
        ("html", F.VERIFICATION_FAILED, "is no JSON: is it an OpenAI-compatible server?: <!DOCTYPE html>"),
    ],
)
async def test_each_way_has_its_reason_and_leaves_nothing(
    rig: RunRig, way: str, reason: FailureReason, words: str
) -> None:
    async with rig(command=bad(way), starting_stall="3s", initialising_stall="3s") as r:
        await r.want(REPLICA)
        report = await r.reaches(REPLICA, S.FAILED)
        assert report.failure.reason is reason
        assert words in report.failure.message
        await until(lambda: not engine_pids(REPLICA), "nothing is left", 5)


@pytest.mark.asyncio
async def test_a_page_is_no_answer_even_where_nothing_is_verified(rig: RunRig) -> None:
    async with rig(command=bad("html"), verify=False) as r:
        await r.want(REPLICA)
        report = await r.reaches(REPLICA, S.FAILED)
        assert report.failure.reason is F.VERIFICATION_FAILED


@pytest.mark.asyncio
async def test_a_port_of_another_program_is_refused_before_the_command_runs(rig: RunRig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with rig(command=fake_command(), port=port) as r:
            await r.want(REPLICA)
            report = await r.reaches(REPLICA, S.FAILED)
            assert report.failure.reason is F.START_REFUSED
            assert f"port {port} is taken by another program" in report.failure.message


@pytest.mark.asyncio
async def test_a_port_may_be_fixed_and_an_open_one_be_all_that_is_asked(rig: RunRig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fixed = [part.replace("${PORT}", str(port)) for part in fake_command()]
    async with rig(command=fixed, port=port, readiness_path="none") as r:
        await r.ready(REPLICA)


def stop_script(tmp_path: Path) -> tuple[list[str], Path]:
    """A `stop_cmd` that writes down that it ran, then signals the command."""
    told = tmp_path / "stopped"
    script = tmp_path / "stop.sh"
    script.write_text('#!/bin/sh\necho "$@ $WHO" >>"$TOLD"\nkill -TERM "$1"\n')
    script.chmod(0o755)
    return [str(script), "${PID}", "${PORT}"], told


@pytest.mark.asyncio
async def test_the_stop_command_ends_what_sigterm_would_not(rig: RunRig, tmp_path: Path) -> None:
    """As `docker stop` does for a container: it gets the command's pid, its port and the model's environment."""
    stop_cmd, told = stop_script(tmp_path)
    env = {"TOLD": str(told), "WHO": "me:${PORT}"}
    async with rig(stop_cmd=stop_cmd, env=env) as r:
        await r.ready(REPLICA)
        pids = engine_pids(REPLICA)
        await r.want(REPLICA, S.STOPPED)
        await r.reaches(REPLICA, S.STOPPED)
        pid, port, who = told.read_text().split()
        assert int(pid) in pids
        assert who == f"me:{port}"
        assert engine_pids(REPLICA) == []


@pytest.mark.asyncio
async def test_the_stop_command_runs_for_a_load_that_failed_too(rig: RunRig, tmp_path: Path) -> None:
    """Else every failed load of a container would leave one behind."""
    stop_cmd, told = stop_script(tmp_path)
    async with rig(command=bad("mute"), stop_cmd=stop_cmd, env={"TOLD": str(told)}, initialising_stall="1s") as r:
        await r.want(REPLICA)
        await r.reaches(REPLICA, S.FAILED)
        await until(told.exists, "the stop command ran", 10)
        await until(lambda: not engine_pids(REPLICA), "nothing is left", 10)


@pytest.mark.asyncio
async def test_a_stop_command_that_hangs_is_not_waited_for(rig: RunRig) -> None:
    async with rig(stop_cmd=["sleep", "600"], stop_grace="1s") as r:
        await r.ready(REPLICA)
        await r.want(REPLICA, S.STOPPED)
        await r.reaches(REPLICA, S.STOPPED, 10)
        assert engine_pids(REPLICA) == []
