"""How processes of a pool are made: the first by exec, all others by fork. Each raises Lost or Refusal, and leaves
nothing behind then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable

import msgspec

from worker.containment import REPLICA_ENV, WORKER_ENV, spawn
from worker.enginelog import open_log
from worker.engines.hostfile import HostFile
from worker.pool import wire
from worker.pool.marker import PLACEHOLDER
from worker.pool.member import Lost, Member, Shortage, Spawned, expect
from worker.starting import ROOT
from worker.surroundings import Surroundings

IMPORT_WITHIN_S = 180.0
PREPARE_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1
_log = logging.getLogger("rewarm.worker.pool")


class Maker:
    """``module`` holds the kind of engine; ``fork_within_s`` is how long any answer but a long one may take."""

    def __init__(
        self, engine: str, module: str, surroundings: Surroundings, loading: Callable[[], bool], fork_within_s: float
    ) -> None:
        self._engine = engine
        self._module = module
        self._around = surroundings
        self._loading = loading
        self._fork_within_s = fork_within_s

    async def zygote(self) -> tuple[Member, dict[str, str]]:
        """It, once it has imported everything, and the versions that it imported."""
        try:
            ours, theirs = wire.pair()
        except OSError as error:
            raise Shortage(f"has no channel: {error}") from error
        try:
            process = await self._spawn(theirs.fileno())
        except OSError as error:
            ours.close()
            raise Lost(f"cannot be started: {error}") from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            member = Spawned(process, ours)
        except OSError as error:
            ours.close()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise Shortage(f"cannot be watched: {error}") from error
        try:
            done = await self._patiently(member)
            await expect(ours, wire.Hello, self._fork_within_s)
        except BaseException:
            await member.end()
            raise
        _log.info("event=zygote pid=%d engine=%s seconds=%.2f", member.pid, self._engine, done.seconds)
        return member, done.versions

    async def fork(self, source: Member) -> Member:
        """Another like ``source``."""
        try:
            ours, theirs = wire.pair()
        except OSError as error:  # no descriptors left
            raise Shortage(f"no channel: {error}") from error
        try:
            try:
                await source.ask(wire.Fork(), wire.Done, self._fork_within_s, (theirs.fileno(),))
            finally:
                theirs.close()
            hello = await expect(ours, wire.Hello, self._fork_within_s)
            return Member(hello.pid, ours, source.key)
        except OSError as error:
            ours.close()
            raise Shortage(f"no descriptor: {error}") from error
        except BaseException:
            ours.close()  # a child that comes too late finds nobody there, and ends
            raise

    async def prepare(self, member: Member, key: str, host: HostFile, *, whole: bool) -> str:
        """``member`` becomes what engines of that registration are forked from. Why only in parts, where ``whole`` was
        asked for."""
        order = wire.Prepare(msgspec.Raw(msgspec.json.encode(host)), whole)
        try:
            done = await member.ask(order, wire.Done, PREPARE_WITHIN_S)
        except BaseException:
            await member.end()
            raise
        member.key = key
        _log.info(
            "event=prepared model=%s pid=%d seconds=%.2f in_parts=%r",
            *(host.spec.model, member.pid, done.seconds, done.in_parts),
        )
        return done.in_parts

    async def _spawn(self, channel: int) -> asyncio.subprocess.Process:
        descriptor, _ = open_log(self._around.paths.logs / f"pool-{self._engine}.log", f"zygote of {self._engine}")
        environment = {name: value for name, value in os.environ.items() if name != self._around.config.secret_env}
        environment |= {REPLICA_ENV: PLACEHOLDER, WORKER_ENV: self._around.marker, "PYTHONUNBUFFERED": "1"}
        program = [sys.executable, "-P", "-m", "worker.pool.zygote", self._module, str(channel), str(os.getpid())]
        try:
            return await spawn(program, env=environment, cwd=os.fspath(ROOT), log=descriptor, pass_fds=(channel,))
        finally:
            os.close(descriptor)

    async def _patiently(self, member: Member) -> wire.Done:
        """The end of the import. While an engine loads it is stopped: it needs the processor now, and what we import
        will be of use only to later ones."""
        answer = asyncio.ensure_future(expect(member.channel, wire.Done, None))
        stopped = False
        looks_left = IMPORT_WITHIN_S / _LOOK_EVERY_S  # while it may run
        try:
            while not answer.done():
                looks_left -= not stopped
                if looks_left < 0:
                    raise Lost(f"has not answered for {IMPORT_WITHIN_S:g} s")
                if self._loading() is not stopped:
                    stopped = not stopped
                    member.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
                await asyncio.wait((answer,), timeout=_LOOK_EVERY_S)
        finally:
            if stopped:
                member.send_signal(signal.SIGCONT)
            answer.cancel()
        return answer.result()
