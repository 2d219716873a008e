"""The program of a `command` engine: started with its port, stopped as its operator says, and why it ended."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import sys
from dataclasses import dataclass

from rewarm.messages import ReplicaSpec
from rewarm.states import FailureReason, ReplicaState
from worker import procs
from worker.containment import WORKER_ENV, members, replica_markers, spawn
from worker.engines.host import HostContext, HostFailed
from worker.engines.hostfile import HostFile

_OURS = ("REWARM_REPORT", "PYTHONUNBUFFERED")  # set for the host, no business of the engine
_SETTLE_S = 0.3
"""What a program that puts itself into the background forks, it has forked by then."""


@dataclass(slots=True)
class Program:
    process: asyncio.subprocess.Process
    spec: ReplicaSpec
    replica: str
    port: int
    cwd: str

    @classmethod
    async def start(cls, host: HostFile, context: HostContext) -> Program:
        """Raise HostFailed (START_REFUSED) when it cannot be run, or its port is another program's."""
        spec = host.spec
        port = spec.port or _free_port()
        if procs.listens_on(port):
            raise HostFailed(FailureReason.START_REFUSED, f"port {port} is taken by another program")
        argv = [_filled(part, port, spec.source) for part in (*spec.command, *spec.args)]
        context.reporter.phase(ReplicaState.STARTING, 0.0, f"running {argv[0]}")
        _log_command(argv)
        try:
            process = await spawn(
                argv, env=_environment(spec, port), cwd=host.cwd, log=sys.stderr.fileno(), new_session=False, tied=True
            )
        except OSError as error:
            why = error.strerror or error
            raise HostFailed(FailureReason.START_REFUSED, f"cannot run {argv[0]!r}: {why}") from error
        return cls(process, spec, host.replica, port, host.cwd)

    @property
    def endpoint(self) -> str:
        return f"tcp:127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        return self.spec.command[0]

    def closed(self) -> str:
        """That its port is closed, in words; with the ports that it listens on instead, where it does."""
        words = f"port {self.port} is closed"
        others = sorted(procs.listening_ports(p.pid for p in self._members()) - {self.port})
        if not others:
            return words
        return f"{words}; the command listens on {', '.join(map(str, others))}: it must take its port from ${{PORT}}"

    async def failure(self, context: HostContext, status: int) -> HostFailed:
        """Why it ended although nobody asked it to."""
        how = f"was ended by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"
        if context.oom.explains(status):
            words = f"{self.name} {how}: the kernel ran out of memory"
            return HostFailed(FailureReason.OUT_OF_MEMORY, words, status)
        if status == 0:
            await asyncio.sleep(_SETTLE_S)
            left = [process.pid for process in await asyncio.to_thread(self._members)]
            if left:
                words = f"{self.name} went into the background (pid {left[0]}): `cmd` must stay in the foreground"
                return HostFailed(FailureReason.START_REFUSED, words, status)
            how = "exited with status 0: `cmd` must run for as long as it serves"
        return HostFailed(FailureReason.ENGINE_EXITED, f"{self.name} {how}", status)

    async def stop(self) -> None:
        """`stop_cmd`, else SIGTERM; SIGKILL after `stop_grace`. The agent kills the whole group after us in any
        case."""
        if self.process.returncode is None:
            try:
                async with asyncio.timeout(max(0.1, self.spec.stop_grace_s * 0.8)):
                    await self._ask_to_stop()
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        elif self.spec.stop_command:  # what it started elsewhere, a container say, may not have ended with it
            try:
                async with asyncio.timeout(max(0.1, self.spec.stop_grace_s * 0.8)):
                    await self._ask_to_stop()
            except TimeoutError:
                pass

    async def _ask_to_stop(self) -> None:
        if not self.spec.stop_command:
            self.process.terminate()
            return
        argv = [
            _filled(part, self.port, self.spec.source).replace("${PID}", str(self.process.pid))
            for part in self.spec.stop_command
        ]
        _log_command(argv)
        try:
            stopping = await spawn(
                argv, env=_environment(self.spec, self.port), cwd=self.cwd, log=sys.stderr.fileno(), new_session=False
            )
        except OSError as error:
            sys.stderr.write(f"stop_cmd cannot be run: {error}\n")
            if self.process.returncode is None:
                self.process.terminate()
            return
        if await stopping.wait() != 0 and self.process.returncode is None:
            self.process.terminate()

    def _members(self) -> list[procs.Process]:
        """Everything of the replica but its host, which is us."""
        return members(replica_markers(self.replica, os.environ.get(WORKER_ENV)), os.getpid())


def _log_command(argv: list[str]) -> None:
    sys.stderr.write(f"$ {shlex.join(argv)}\n")
    sys.stderr.flush()


def _filled(part: str, port: int, source: str | None) -> str:
    return part.replace("${PORT}", str(port)).replace("${SOURCE}", source or "")


def _environment(spec: ReplicaSpec, port: int) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in _OURS}
    return ours | {name: _filled(value, port, spec.source) for name, value in spec.env.items()} | {"PORT": str(port)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
