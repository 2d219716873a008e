"""From a want to a running host: estimate, admission to the memory, the host file, the process."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rewarm.messages import ReplicaSpec, UnknownSchema, Want
from rewarm.states import FailureReason, Tier
from snapshots import THROTTLE_ENV
from worker.containment import REPLICA_ENV, WORKER_ENV
from worker.devices.device import visible
from worker.devices.ledgers import Choice, Demand, Others
from worker.enginelog import open_log
from worker.engines.estimate import CannotEstimate, Estimate, estimate
from worker.engines.hostfile import HOST_MODULES, HostFile, read_host_file, write_host_file
from worker.engines.vllm.environment import THREADS_ENV
from worker.exhaustion import fault_of
from worker.lifecycle import Faulted
from worker.limits.sizes import threads_for
from worker.memory import Holding, Machine, Verdict
from worker.procs import read_process
from worker.report import REPORT_ENV
from worker.starting import HostProcess, Order
from worker.surroundings import Surroundings

NO_ROOM_PATIENCE_S = 3.0
"""How long a load waits for room that nobody is known to be giving back: page cache and just-ended processes settle."""

_log = logging.getLogger("rewarm.worker.launch")


class CannotStart(Exception):
    def __init__(self, fault: Faulted) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Files:
    """Where one replica's sockets and files lie."""

    gate: Path
    report: Path
    host: Path
    throttle: Path
    log: Path

    @classmethod
    def of(cls, surroundings: Surroundings, replica: str, model: str) -> Files:
        run = surroundings.paths.run
        return cls(
            run / f"{replica}.sock",
            run / f"{replica}.report",
            run / f"{replica}.host",
            run / f"{replica}.throttle",
            surroundings.paths.engine_log(model),
        )

    def remove(self) -> None:
        for path in (self.gate, self.report, self.host, self.throttle):
            path.unlink(missing_ok=True)


def sweep_files(run: Path) -> list[HostFile]:
    """Remove the files of replicas whose agent was killed before it could; what they ran."""
    swept = []
    for path in run.glob("*.host"):
        try:
            host = read_host_file(path)
        except (OSError, UnknownSchema):
            continue
        if host.agent_pid != os.getpid() and read_process(host.agent_pid) is not None:
            continue  # another worker's, on the same state folder
        for suffix in (".sock", ".report", ".host", ".throttle"):
            path.with_suffix(suffix).unlink(missing_ok=True)
        swept.append(host)
    return swept


@dataclass(frozen=True, slots=True)
class Launched:
    process: HostProcess
    log_from: int  # offset in the log where this attempt's output begins
    tier: Tier
    why: str  # no better tier
    proved: Callable[[str], None]  # see worker.starting.Started


async def estimated(spec: ReplicaSpec, surroundings: Surroundings) -> Estimate:
    """Raise CannotStart for weights that are missing or damaged."""
    try:
        return await asyncio.to_thread(estimate, spec, len(surroundings.ledgers.gpus))
    except CannotEstimate as error:
        raise CannotStart(fault_of(error, error.reason, error.message)) from error
    except OSError as error:
        raise CannotStart(fault_of(error, FailureReason.WEIGHTS_MISSING, f"{spec.source}: {error}")) from error


async def admitted(
    surroundings: Surroundings,
    want: Want,
    need: Estimate,
    room_is_coming: Callable[[], bool],
    waiting: Callable[[str], None],
) -> Mapping[str, int]:
    """Wait until the replica's memory is promised to it: bytes by device. Raise CannotStart (NEVER_FITS, NO_ROOM,
    DEVICE_LOST) with the arithmetic.

    While another replica of this agent is ending, its memory is waited for as long as that takes; ``waiting`` is told
    why.
    """
    clock = surroundings.monotonic
    patience_until = clock() + NO_ROOM_PATIENCE_S
    while True:
        surroundings.room.clear()
        choice = await _try(surroundings, want, need)
        verdict = choice.verdict
        if verdict.reason is None:
            return choice.needs
        if verdict.reason is not FailureReason.NO_ROOM:
            raise CannotStart(Faulted(verdict.reason, verdict.message))
        if room_is_coming():
            patience_until = clock() + NO_ROOM_PATIENCE_S
            waiting("waiting for the memory of a replica that stops")
        elif clock() >= patience_until:
            raise CannotStart(Faulted(FailureReason.NO_ROOM, verdict.message))
        else:
            waiting("waiting for room in memory")
        try:
            async with asyncio.timeout(0.25):
                await surroundings.room.wait()
        except TimeoutError:
            pass  # look again: others of this machine may have given memory back


async def _try(surroundings: Surroundings, want: Want, need: Estimate) -> Choice:
    async with surroundings.device.hold() as others:
        choice = await room_for(surroundings, need.demand, others)
        if choice.verdict.fits:
            surroundings.ledgers.hold(want.replica, {key: Holding(size) for key, size in choice.needs.items()})
            surroundings.device.promise(want.replica, choice.needs)
    return choice


async def room_for(surroundings: Surroundings, demand: Demand, others: Others) -> Choice:
    """Where it can go, with the machine's lock. What others were only lent is taken for it where it must be."""
    choice = Choice(Verdict())

    def look(readings: Mapping[str, Machine]) -> Verdict:
        nonlocal choice
        choice = surroundings.ledgers.choose(demand, readings, others)
        return choice.verdict

    await _making_room(surroundings, look)
    return choice


async def make_room(surroundings: Surroundings, needs: Mapping[str, int], arithmetic: str, others: Others) -> Verdict:
    """As :func:`room_for`, for bytes by device that are known."""
    return await _making_room(
        surroundings, lambda readings: surroundings.ledgers.admit(needs, arithmetic, readings, others)
    )


async def _making_room(surroundings: Surroundings, look: Callable[[Mapping[str, Machine]], Verdict]) -> Verdict:
    """What is kept for the wakes of sleeping replicas is taken first, then the pool's."""
    verdict = look(await surroundings.watch.read())
    for take_back in tuple(surroundings.lenders.values()):
        if verdict.reason is not FailureReason.NO_ROOM:
            return verdict
        if await take_back():
            verdict = look(await surroundings.watch.read())
    if verdict.reason is FailureReason.NO_ROOM and await surroundings.starter.give_back():
        verdict = look(await surroundings.watch.read())
    return verdict


async def launch(
    surroundings: Surroundings, want: Want, need: Estimate, needs: Mapping[str, int], files: Files, token: str
) -> Launched:
    """Raise CannotStart (START_REFUSED) when there is no such engine or its host cannot be started, (AGENT_LOST) when
    it could be another time."""
    module = HOST_MODULES.get(want.spec.engine)
    if module is None:
        message = f"engine {want.spec.engine!r} is none of {', '.join(HOST_MODULES)}"
        raise CannotStart(Faulted(FailureReason.START_REFUSED, message))
    try:
        files.gate.unlink(missing_ok=True)
        host = _host_file(surroundings, want, need, files, token)
        write_host_file(files.host, host)
        descriptor, log_from = open_log(files.log, f"replica {want.replica} attempt {want.attempt}")
        try:
            order = Order(module, host, files.host, _environment(surroundings, want, needs, files), descriptor)
            started = await surroundings.starter.start(order)
        finally:
            os.close(descriptor)
    except OSError as error:
        message = f"the engine's host cannot be started: {error}"
        raise CannotStart(fault_of(error, FailureReason.START_REFUSED, message)) from error
    await surroundings.device.started(want.replica, started.process.pid)
    _log.info(
        "event=started replica=%s model=%s attempt=%d pid=%d tier=%s why=%r need=%s",
        *(want.replica, want.model, want.attempt, started.process.pid),
        *(started.tier.value, started.why, need.arithmetic),
    )
    return Launched(started.process, log_from, started.tier, started.why, started.proved)


def new_token() -> str:
    return secrets.token_urlsafe(24)


def _host_file(surroundings: Surroundings, want: Want, need: Estimate, files: Files, token: str) -> HostFile:
    return msgspec.structs.replace(
        for_any_replica(surroundings, want.spec, need),
        replica=want.replica,
        agent_pid=os.getpid(),
        attempt=want.attempt,
        socket=os.fspath(files.gate),
        report=os.fspath(files.report),
        token=token,
        secret=surroundings.secret,
        advertise=surroundings.config.worker.advertise,
    )


def for_any_replica(surroundings: Surroundings, spec: ReplicaSpec, need: Estimate) -> HostFile:
    """What the host files of all replicas of one specification have in common on this machine."""
    return HostFile(
        replica="",
        agent_pid=0,
        spec=spec,
        socket="",
        report="",
        token="",
        cwd=surroundings.cwd,
        need_bytes=need.total_bytes,
        gpus=need.gpus,
        weights_bytes=need.weights_bytes,
        kv_bytes=need.kv_bytes,
        snapshots=os.fspath(surroundings.config.snapshots.dir or surroundings.paths.snapshots),
        snapshots_capacity_bytes=surroundings.config.snapshots.capacity,
        snapshots_floor_bytes=surroundings.config.snapshots.floor,
        read_bytes=need.read_bytes,
    )


def _environment(surroundings: Surroundings, want: Want, needs: Mapping[str, int], files: Files) -> dict[str, str]:
    """The agent's own, less the fleet's secret: an engine has no business with it. A `command` gets its ``env``
    itself."""
    env = {name: value for name, value in os.environ.items() if name != surroundings.config.secret_env}
    if want.spec.engine != "command":
        env |= want.spec.env
    if want.spec.cpus is not None:
        env.setdefault(THREADS_ENV, str(threads_for(want.spec.cpus)))
    env |= visible(needs, surroundings.ledgers.devices)
    env |= {
        REPLICA_ENV: want.replica,
        WORKER_ENV: surroundings.marker,
        REPORT_ENV: os.fspath(files.report),
        THROTTLE_ENV: os.fspath(files.throttle),
        "PYTHONUNBUFFERED": "1",
    }
    return env
