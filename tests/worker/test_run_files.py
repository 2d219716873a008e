"""What a killed agent leaves in the run folder goes at the next start; what lives stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rewarm.messages import ReplicaSpec
from worker.engines.hostfile import HostFile, write_host_file
from worker.launch import sweep_files


def _files(run: Path, replica: str, agent_pid: int) -> list[Path]:
    paths = [run / f"{replica}{suffix}" for suffix in (".sock", ".report", ".host")]
    for path in paths[:2]:
        path.touch()
    host = HostFile(
        replica=replica,
        agent_pid=agent_pid,
        spec=ReplicaSpec(model="m", engine="command", served_names=("m",), slots=1),
        socket=str(paths[0]),
        report=str(paths[1]),
        token="t",
    )
    write_host_file(paths[2], host)
    return paths


def test_only_a_dead_agents_files_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = _files(tmp_path, "qwen2.5-aaaaaaaa", dead.pid)
    kept = _files(tmp_path, "m-bbbbbbbb", os.getppid())
    foreign = tmp_path / "x.host"
    foreign.write_text("{}")
    redis = tmp_path / "redis.sock"
    redis.touch()
    assert len(sweep_files(tmp_path)) == 1
    assert not [path for path in gone if path.exists()]
    assert all(path.exists() for path in [*kept, foreign, redis])
