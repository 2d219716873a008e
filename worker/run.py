"""The agent as a process: one of its name on a state folder, what it finds on its machine, and its signals."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import uvloop

from fleet import FleetClient
from rewarm.config import Config
from rewarm.errors import BudgetExceeded, SecretMissing, WorkerRunning
from rewarm.paths import Paths
from rewarm.tracing import tracing_of
from rewarm.upstream import UpstreamPool
from worker import containment
from worker.agent import Agent
from worker.devices.adding_up import asked_of, problems
from worker.devices.device import devices_of
from worker.devices.ledgers import Ledgers
from worker.devices.lock import DeviceLock, default_lock_path
from worker.devices.nvml import Nvml, SystemNvml
from worker.devices.watch import DeviceWatch
from worker.launch import sweep_files
from worker.leftovers import stop_elsewhere
from worker.limits.cgroups import find_groups
from worker.memory import read_machine
from worker.pacing.loads import Loads
from worker.surroundings import Surroundings

_log = logging.getLogger("rewarm.worker.run")


async def run_agent(config: Config, paths: Paths, client: FleetClient, *, only: str = "", port: int = 0) -> None:
    """Until SIGTERM or SIGINT (drain, then stop; a second one stops at once). ``client`` stays the caller's to close.

    ``only``: this is the worker of a place, in a pod, and serves that one model; its place server listens on ``port``.

    Raise WorkerRunning when an agent of this name runs on this state folder, SecretMissing where gates would listen
    on TCP without the fleet's secret, DeviceUnknown or DeviceTwice for `worker.devices`, BudgetExceeded where what is
    always to be loaded does not fit.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, uvloop.Loop):
        raise RuntimeError("the worker runs on uvloop: start it with uvloop.run or through `rewarm worker`")
    secret = os.environ.get(config.secret_env, "")
    if config.worker.advertise and not secret:
        raise SecretMissing(f"worker.advertise is set, and the environment has no {config.secret_env}")
    paths.make()
    with _only_agent(paths, config.worker.name), tracing_of(config.tracing, "worker") as tracing:
        containment.become_subreaper()
        await containment.sweep(containment.worker_marker(config.worker.name, paths.state))
        await stop_elsewhere(sweep_files(paths.run))
        async with make_surroundings(config, paths, secret) as surroundings:
            await _add_up(surroundings)
            surroundings.tracing = tracing
            surroundings.only = only
            agent = Agent(surroundings, client)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, agent.stop)
            try:
                async with agent.place.listening(port) if only else nullcontext():
                    await agent.run()
            finally:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(number)


@asynccontextmanager
async def make_surroundings(
    config: Config, paths: Paths, secret: str = "", nvml: Nvml | None = None
) -> AsyncIterator[Surroundings]:
    """Raise DeviceUnknown, DeviceTwice."""
    marker = containment.worker_marker(config.worker.name, paths.state)
    nvml = await asyncio.to_thread(SystemNvml) if nvml is None else nvml
    devices = devices_of(config.worker.devices, config.worker.memory, read_machine(), nvml.gpus(), nvml.why_none)
    ledgers = Ledgers(devices)
    watch = DeviceWatch(devices, nvml, ledgers.lost)
    lock = DeviceLock(default_lock_path(), watch.used_by)
    pool = UpstreamPool()
    try:
        groups = find_groups(marker) if config.worker.cgroups == "auto" else None
        loads = Loads(config.worker.load_guard == "on")
        yield Surroundings(config, paths, marker, secret, ledgers, watch, lock, pool, groups=groups, loads=loads)
    finally:
        await pool.close()


async def _add_up(surroundings: Surroundings) -> None:
    """Raise BudgetExceeded where this is the fleet's only machine, and what is always to be loaded does not fit it."""
    config, ledgers = surroundings.config, surroundings.ledgers
    asked = await asyncio.to_thread(asked_of, config, len(ledgers.gpus))
    for problem in problems(ledgers.devices, asked):
        if problem.code == BudgetExceeded.code and problem.field.startswith("models.") and config.redis.url is None:
            raise BudgetExceeded(f"{problem.field}: {problem.message}")
        _log.warning("event=does-not-add-up code=%s field=%s error=%s", problem.code, problem.field, problem.message)


@contextmanager
def _only_agent(paths: Paths, worker: str) -> Iterator[None]:
    """A second agent would take the first one's engines for leftovers and kill them."""
    path = paths.run / f"{worker.replace('/', '-')}.agent"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkerRunning(f"worker {worker!r} runs already on {paths.state}") from error
        yield
    finally:
        os.close(descriptor)
