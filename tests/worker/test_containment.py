"""Nothing of a replica outlives it, whatever it does and however its agent ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from fleet import FleetClient, Leader, Publisher, Registry
from rewarm.config import Config, catalogue, parse
from rewarm.messages import Want
from rewarm.paths import Paths
from rewarm.states import ReplicaState
from tests.redis_server import LocalRedis
from tests.worker.conftest import ROOT, alive, fake_command, until
from worker import run_agent
from worker.containment import (
    REPLICA_ENV,
    WORKER_ENV,
    become_subreaper,
    kill_all,
    members,
    memory_of,
    reap_orphans,
    replica_markers,
    spawn,
    sweep,
    worker_marker,
)

pytestmark = pytest.mark.timeout(90)

# Double fork into a session of its own, environment emptied: found by its parents only.
ESCAPE = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if "clean" in sys.argv:
            os.execve(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"], {})
        signal.pause()
    os.waitpid(-1, 0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pause()
"""


@asynccontextmanager
async def started(marker: str, *argv: str, **more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    name, _, value = marker.partition("=")
    log = os.open(os.devnull, os.O_WRONLY)
    try:
        process = await spawn(argv, env={**os.environ, **more, name: value}, cwd="/", log=log)
    finally:
        os.close(log)
    try:
        yield process
    finally:
        await kill_all([marker], process.pid)
        await process.wait()


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["", "clean"])
async def test_an_escapee_is_found_and_killed(how: str) -> None:
    become_subreaper()
    marker = f"REWARM_REPLICA=escape-{os.getpid()}{how}"
    async with started(marker, sys.executable, "-c", ESCAPE, how) as process:
        await until(lambda: len(members([marker], process.pid)) == 3, "three processes")
        found = members([marker], process.pid)
        pids = [p.pid for p in found]
        assert len({p.session for p in found}) == 2
        assert memory_of([marker], process.pid) > 1_000_000
        assert await kill_all([marker], process.pid) == []
        await process.wait()
        assert not any(alive(pid) for pid in pids)


@pytest.mark.asyncio
async def test_the_replica_of_another_worker_of_the_same_name_is_left_alone() -> None:
    name = f"m-{os.getpid()}"
    argv = (sys.executable, "-c", ESCAPE)
    marker = f"{REPLICA_ENV}={name}"
    async with started(marker, *argv, **{WORKER_ENV: "w:1"}), started(marker, *argv, **{WORKER_ENV: "w:2"}) as other:
        await until(lambda: len(members([marker])) == 6, "both run")
        assert await kill_all(replica_markers(name, "w:1"), None) == []
        assert alive(other.pid)
        assert members(replica_markers(name, "w:1")) == []
        assert len(members([marker])) == 3
        assert members([]) == [], "no marker is nobody's"


@pytest.mark.asyncio
async def test_a_stopped_process_is_killed_too() -> None:
    marker = f"REWARM_REPLICA=stopped-{os.getpid()}"
    async with started(marker, sys.executable, "-c", ESCAPE) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert await kill_all([marker], process.pid) == []
        assert await process.wait() == -signal.SIGKILL


@pytest.mark.asyncio
async def test_the_sweep_takes_what_bears_the_mark_of_this_worker_and_nothing_else() -> None:
    mine, other = f"{WORKER_ENV}=w:{os.getpid()}", f"{WORKER_ENV}=other:{os.getpid()}"
    argv = (sys.executable, "-c", ESCAPE)
    async with started(mine, *argv) as left, started(other, *argv) as kept:
        await until(lambda: len(members([mine])) == 3, "the escapees run")
        assert await sweep(mine.partition("=")[2]) == 3
        assert await left.wait() == -signal.SIGKILL
        assert alive(kept.pid)
        assert await sweep(mine.partition("=")[2]) == 0


@pytest.mark.asyncio
async def test_orphans_that_ended_are_reaped_by_the_second_look() -> None:
    become_subreaper()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import os\nif os.fork() == 0:\n    if os.fork(): os._exit(0)\n    os._exit(0)"
    )
    await process.wait()
    me = psutil.Process()

    def zombies() -> frozenset[int]:
        return frozenset(c.pid for c in me.children() if c.status() == psutil.STATUS_ZOMBIE)

    orphans = await until(zombies, "orphans fell to us")
    seen = reap_orphans(set(), frozenset())
    assert seen >= orphans
    assert zombies() >= orphans  # the first look takes nothing: it might be a host that was just started
    reap_orphans(set(), seen)
    assert not orphans & zombies()


@pytest.mark.asyncio
async def test_the_agent_runs_on_uvloop_only(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(ROOT)!r})
from rewarm.config import parse
from rewarm.paths import Paths
from pathlib import Path
from worker import run_agent
asyncio.run(run_agent(parse("models: {{}}"), Paths.at(Path({str(tmp_path)!r})), None))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE)
    _, error = await process.communicate()
    assert process.returncode == 1
    assert b"runs on uvloop" in error
    assert run_agent.__name__ == "run_agent"


class Machine:
    """An agent as a process of its own, and a leader that wants one replica of it."""

    def __init__(self, folder: Path, redis: LocalRedis, *knobs: str, **worker: str) -> None:
        self.folder, self.redis = folder, redis
        text = json.dumps(
            {
                "fleet": "containment",
                "state_dir": str(folder / "state"),
                "worker": {"name": "w1", "heartbeat": "200ms", **worker},
                "models": {"m": {"engine": "command", "cmd": fake_command(*knobs), "memory": "64MiB"}},
            }
        )
        self.file = folder / "config.yaml"
        self.file.write_text(text)
        self.config: Config = parse(text)
        self.paths = Paths.at(folder / "state")
        self.log = folder / "agent.log"
        self._agents: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Machine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for agent in self._agents:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()
        await kill_all([self.marker], None)
        if exc[0] is not None:
            sys.stderr.write(self.log.read_text())

    @property
    def marker(self) -> str:
        return f"{WORKER_ENV}={worker_marker('w1', self.paths.state)}"

    async def agent(self) -> asyncio.subprocess.Process:
        with self.log.open("ab") as log:
            agent = await asyncio.create_subprocess_exec(
                *(sys.executable, str(ROOT / "tests" / "programs" / "agent.py"), str(self.file), self.redis.url),
                stdout=log,
                stderr=log,
            )
        self._agents.append(agent)
        return agent

    def processes(self) -> list[int]:
        return [p.pid for p in members([self.marker])]


@asynccontextmanager
async def wanting(machine: Machine, state: ReplicaState = ReplicaState.READY) -> AsyncIterator[Registry]:
    client = await FleetClient.connect(machine.redis.url, "containment", check=False)
    leader = Leader(client, "test-leader", ttl_ms=120_000)
    term = await leader.campaign()
    assert term is not None
    entry = catalogue(machine.config)["m"]
    want = Want(
        replica="m-1", worker="w1", model="m", spec=entry.spec, spec_hash=entry.spec_hash, state=state, term=term
    )
    await Publisher(client, leader).want([want])
    try:
        yield Registry(client)
    finally:
        await client.close()


async def state_of(registry: Registry) -> ReplicaState | None:
    beat = (await registry.snapshot()).workers.get("w1")
    return beat.replicas[0].state if beat is not None and beat.replicas else None


@pytest.mark.redis
@pytest.mark.asyncio
async def test_a_killed_agent_takes_its_engines_along_and_the_next_one_sweeps_the_rest(
    tmp_path: Path, own_redis: LocalRedis
) -> None:
    become_subreaper()  # of what falls out of the killed agent
    machine = Machine(tmp_path, own_redis, "--fork-child")
    async with machine, wanting(machine) as registry:
        agent = await machine.agent()

        async def ready(pid: int) -> bool:
            beat = (await registry.snapshot()).workers.get("w1")
            reports = beat.replicas if beat is not None and beat.pid == pid else ()
            return any(report.state is ReplicaState.READY for report in reports)

        await until(lambda: ready(agent.pid), "ready", 30)
        before = machine.processes()
        assert len(before) == 3  # host, program, and the program's child in a session of its own
        agent.kill()
        await agent.wait()
        await until(lambda: len(machine.processes()) <= 1, "host and program die with the agent", 5)
        again = await machine.agent()
        await until(lambda: not any(alive(pid) for pid in before), "the escapee is swept", 20)
        await until(lambda: ready(again.pid), "the want is made so anew", 30)
        again.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(again.wait(), 20) == 0
        assert machine.processes() == []
        assert await state_of(registry) is None


@pytest.mark.redis
@pytest.mark.asyncio
async def test_a_second_agent_of_the_same_name_is_refused(tmp_path: Path, own_redis: LocalRedis) -> None:
    machine = Machine(tmp_path, own_redis)
    async with machine, wanting(machine) as registry:
        first = await machine.agent()

        async def known() -> bool:
            return await state_of(registry) is not None

        await until(known, "the first runs", 30)
        second = await machine.agent()
        assert await asyncio.wait_for(second.wait(), 20) != 0
        assert "runs already" in machine.log.read_text()
        first.terminate()
        assert await asyncio.wait_for(first.wait(), 20) == 0


@pytest.mark.redis
@pytest.mark.asyncio
async def test_redis_gone_stops_nothing_and_all_is_told_again_when_it_is_back(
    tmp_path: Path, own_redis: LocalRedis
) -> None:
    machine = Machine(tmp_path, own_redis)
    async with machine, wanting(machine) as registry:
        agent = await machine.agent()

        async def ready() -> bool:
            return await state_of(registry) is ReplicaState.READY

        await until(ready, "ready", 30)
        pids = machine.processes()
        own_redis.kill()
        await until(lambda: "redis is lost" in machine.log.read_text(), "noticed")
        assert machine.processes() == pids
        own_redis.start()
        await until(lambda: "redis-back" in machine.log.read_text(), "noticed again", 20)

        async def known() -> bool:
            try:
                return await state_of(registry) is ReplicaState.READY
            except Exception:  # noqa: BLE001  # our own client meets the restart too
                return False

        await until(known, "told again", 20)
        assert machine.processes() == pids
        own_redis.kill()
        agent.terminate()
        assert await asyncio.wait_for(agent.wait(), 30) == 0
        assert machine.processes() == []
