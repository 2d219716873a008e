"""A pool of toy engines in this process, as an agent would keep it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from rewarm.config import parse
from rewarm.messages import PoolReport, PreparedReport, ReplicaSpec
from rewarm.paths import Paths
from tests.worker.conftest import until
from worker.containment import become_subreaper, members
from worker.engines.hostfile import HostFile, write_host_file
from worker.pool.kind import key
from worker.pool.member import Member
from worker.pool.pool import Pool
from worker.procs import Process
from worker.run import make_surroundings
from worker.surroundings import Surroundings

TOY = "tests.worker.pool.toy"


class Rig:
    def __init__(self, folder: Path, around: Surroundings, module: str) -> None:
        self.folder = folder
        self.around = around
        self.loading = False
        self.pool = Pool("vllm", around, lambda: self.loading, module=module)
        self.hosts: dict[str, HostFile] = {}

    def register(self, *specs: ReplicaSpec) -> None:
        self.hosts = {spec.model: HostFile(**_ANY, spec=spec) for spec in specs}
        self.pool.register({key(host): host for host in self.hosts.values()})

    async def start(self, model: str, replica: str = "r-1", **fields: Any) -> Member:
        """As a launch does. Raise NotPooled."""
        host = self.write_host(model, replica, **fields)
        path = self.folder / f"{replica}.host"
        log = os.open(self.folder / "engine.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
        try:
            return await self.pool.start(host, str(path), {"REWARM_REPLICA": replica}, log)
        finally:
            os.close(log)

    def write_host(self, model: str, replica: str, **fields: Any) -> HostFile:
        """``REPLICA.host`` in the folder."""
        host = msgspec.structs.replace(self.hosts[model], replica=replica, agent_pid=os.getpid(), **fields)
        write_host_file(self.folder / f"{replica}.host", host)
        return host

    async def said(self, replica: str = "r-1") -> dict[str, Any]:
        """What the toy host of the replica wrote."""
        path = self.folder / f"{replica}.json"
        await until(path.exists, f"the host of {replica} runs")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def report(self) -> PoolReport:
        return self.pool.report()

    def of(self, model: str) -> PreparedReport:
        return next(entry for entry in self.report().prepared if entry.model == model)

    async def filled(self) -> PoolReport:
        """Until the zygote is up, and every model that can be prepared has a process ready."""

        def there() -> bool:
            report = self.report()
            waits = any(
                entry.state == "waiting" or (entry.state == "ready" and not entry.ready) for entry in report.prepared
            )
            return report.state == "ready" and not waits

        await until(there, "the pool is filled", 60)
        return self.report()

    async def filled_without_ready(self) -> None:
        """With ``ready=0``: every model has its process, and none is forked ahead."""
        await until(lambda: all(entry.state == "ready" for entry in self.report().prepared), "all is prepared", 60)

    def processes(self) -> list[Process]:
        """All that are alive of the pool and of what was started from it."""
        return members([f"REWARM_WORKER={self.around.marker}"])


_ANY: Mapping[str, Any] = {"replica": "", "agent_pid": 0, "socket": "", "report": "", "token": ""}


def spec(model: str = "m", *args: str, **fields: Any) -> ReplicaSpec:
    return ReplicaSpec(model=model, engine="vllm", served_names=(model,), slots=1, args=args, **fields)


@contextmanager
def descriptors_left(number: int) -> Iterator[None]:
    """Only so many more can be opened in this process meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_now = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_now) + 1 + number, before[1]))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(open_now[0]))
        for _ in range(number):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in held:
            os.close(descriptor)


@asynccontextmanager
async def pooled(folder: Path, *specs: ReplicaSpec, module: str = TOY, **config: Any) -> AsyncIterator[Rig]:
    """Running; afterwards nothing of it is left."""
    become_subreaper()
    (folder / "version").write_text("1")
    paths = Paths.at(folder / "state")
    paths.make()
    settings = {"state_dir": str(folder / "state"), "worker": {"name": "w1"}, "pool": {"fork_timeout": "5s", **config}}
    async with make_surroundings(parse(json.dumps(settings)), paths) as around:
        rig = Rig(folder, around, module)
        rig.register(*specs)
        task = asyncio.create_task(rig.pool.run())
        try:
            yield rig
        finally:
            task.cancel()
            await asyncio.wait((task,))
            for process in rig.processes():  # engines outlive the pool: a test that started one ends it here
                os.kill(process.pid, signal.SIGKILL)
            await until(lambda: not rig.processes(), "nothing is left")
