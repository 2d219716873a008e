"""One replica's processes: the host that the agent started, and all that came of it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rewarm.messages import ReplicaSpec, Want
from rewarm.states import FailureReason, ReplicaState
from worker.containment import kill_all, members, memory_back, memory_of, replica_markers, wait_memory_back
from worker.enginelog import tail
from worker.engines.estimate import Estimate
from worker.launch import Files, Launched, launch
from worker.lifecycle import Faulted
from worker.limits.confinement import Confinement
from worker.limits.sizes import limits_of
from worker.memory import read_machine
from worker.oom import OomWatch, says_out_of_memory, told_apart, with_advice
from worker.pacing.guard import Pace
from worker.pacing.pace import LoadPace, disk_of
from worker.surroundings import Surroundings

_MEASURE_WITHIN_S = 2.0
_log = logging.getLogger("rewarm.worker.hosted")


class Hosted:
    """``memory_bytes`` is what all of them held when last measured (PSS)."""

    def __init__(self, replica: str, worker: str, files: Files) -> None:
        """``worker``: the marker of its processes, see `worker_marker`."""
        self._replica = replica
        self._markers = replica_markers(replica, worker)
        self._files = files
        self._launched: Launched | None = None
        self._oom = OomWatch()
        self._want: Want | None = None
        self.confinement: Confinement | None = None
        self._pace: LoadPace | None = None  # while it loads
        self._available_before = 0  # when the end began
        self._back_bytes = 0  # what the end has to give back at least
        self._stop_within_s: float | None = None  # where its host has a command to run before everything is killed
        self.memory_bytes = 0

    @property
    def pid(self) -> int | None:
        return None if self._launched is None else self._launched.process.pid

    async def start(
        self, surroundings: Surroundings, want: Want, need: Estimate, needs: Mapping[str, int], token: str
    ) -> Launched:
        """``needs``: bytes by device. Raise CannotStart."""
        self._oom = OomWatch()
        self._want = want
        limits = limits_of(want.spec, need)
        self.confinement = Confinement(surroundings.groups, self._replica, limits, surroundings.pinned)
        self._pace = self._paced(surroundings, want.spec)
        self._launched = await launch(surroundings, want, need, needs, self._files, token)
        self._stop_within_s = want.spec.stop_grace_s if want.spec.stop_command else None
        self.confinement.take(self._launched.process.pid)
        pace = surroundings.loads.begin(self._replica, surroundings.monotonic(), waited_for=want.waited_for)
        self._pace.started(self.confinement.group, [self._launched.process.pid], pace)
        return self._launched

    def _paced(self, surroundings: Surroundings, spec: ReplicaSpec) -> LoadPace:
        return LoadPace(
            self._replica,
            self._files.throttle,
            full=surroundings.bandwidth,
            configured=spec.load_bandwidth,
            io_class=spec.load_io_class,
            # Ours read weights through the throttle; what a `command` reads is held by the kernel.
            disk=disk_of(Path(spec.source)) if spec.engine == "command" and spec.source is not None else None,
        )

    async def look_at_pace(self, surroundings: Surroundings, *, waited_for: bool) -> Pace:
        """While it loads: as fast as what is served beside it allows. ``waited_for``: somebody waits for it."""
        if self._pace is None or self.pid is None:
            return Pace()
        pace = surroundings.loads.look(self._replica, surroundings.monotonic(), waited_for=waited_for)
        if pace != self._pace.pace:
            self._pace.change(pace, await self.pids())
        return pace

    async def end_pace(self, surroundings: Surroundings) -> None:
        """It is ready, or will never be."""
        surroundings.loads.end(self._replica)
        if self._pace is not None:
            pace, self._pace = self._pace, None
            pace.ready(await self.pids())

    def proved(self, weights: str) -> None:
        """It has answered rightly with ``weights``."""
        if self._launched is not None:
            self._launched.proved(weights)

    async def wait(self) -> int:
        assert self._launched is not None
        return await self._launched.process.wait()

    async def terminate(self) -> None:
        """Ask the host to stop. What memory comes back later is measured from here."""
        await self._before_end()
        if self._launched is not None and self._launched.process.returncode is None:
            self._launched.process.send_signal(signal.SIGTERM)

    async def kill(self) -> bool:
        """Everything, now. True when nothing is left and its memory has come back.

        What a command started elsewhere, as a container is, only its ``stop_cmd`` can end: its host gets the time that
        it has for that.
        """
        await self._before_end()
        await self._let_host_stop()
        left = await kill_all(self._markers, self.pid)
        if left:
            _log.error("event=not-killed replica=%s pids=%s", self._replica, [process.pid for process in left])
            return False
        if self._available_before:
            grown = await wait_memory_back(self._available_before, self._back_bytes)
            held = self.memory_bytes
            _log.info("event=gone replica=%s held_bytes=%d freed_bytes=%d", self._replica, held, max(0, grown))
        self.memory_bytes = 0
        if self._pace is not None:
            self._pace.close()
            self._pace = None
        if self.confinement is not None:
            await self.confinement.release()
        return True

    async def _let_host_stop(self) -> None:
        if self._stop_within_s is None or self._launched is None or self._launched.process.returncode is not None:
            return
        within_s, self._stop_within_s = self._stop_within_s, None  # once; then it is killed
        process = self._launched.process
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            pass

    async def measure(self) -> None:
        self.memory_bytes = await self._of_all(memory_of) or self.memory_bytes

    async def pids(self) -> list[int]:
        return [process.pid for process in await asyncio.to_thread(members, self._markers, self.pid)]

    async def _of_all(self, measure: Callable[[Sequence[str], int | None], int]) -> int:
        """Give up after two seconds: reading page tables waits for a lock that a stuck process may hold."""
        if self.pid is None:
            return 0
        try:
            async with asyncio.timeout(_MEASURE_WITHIN_S):
                return await asyncio.to_thread(measure, self._markers, self.pid)
        except TimeoutError:
            _log.warning("event=memory-not-measured replica=%s", self._replica)
            return 0

    def tail(self) -> str:
        """The last lines of this attempt's output."""
        return "" if self._launched is None else tail(self._files.log, self._launched.log_from)

    async def over_limit(self) -> bool:
        """It takes more memory than it may, and nobody else would end it."""
        if self.confinement is None or not self.confinement.watched or self.pid is None:
            return False
        return await self.confinement.over_limit(self._markers, self.pid)

    def explain(self, status: int, phase: ReplicaState) -> Faulted:
        """Why a host ended that said nothing itself."""
        how = f"was ended by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"
        if self._oom.explains(status):
            words = f"the engine's host {how}: the kernel ran out of memory"
            return self.judge(Faulted(FailureReason.OUT_OF_MEMORY, words, status), phase)
        return self.judge(Faulted(FailureReason.ENGINE_EXITED, f"the engine's host {how}", status), phase)

    def judge(self, fault: Faulted, phase: ReplicaState) -> Faulted:
        """What the host or its end says, with what its log and the kernel know beside that: was it memory, whose limit,
        and what was it wanted for?"""
        reason, log = fault.reason, self.tail()
        if reason not in (FailureReason.ENGINE_EXITED, FailureReason.OUT_OF_MEMORY, FailureReason.NEVER_FITS):
            return fault
        if self.confinement is not None and self.confinement.killed:
            return Faulted(FailureReason.MEMORY_LIMIT, f"it took {self.confinement.words}", fault.exit_status)
        spec = None if self._want is None else self._want.spec
        slots, context = (1, None) if spec is None else (spec.slots, spec.context_length)
        if reason is FailureReason.NEVER_FITS:
            return replace(fault, message=with_advice(fault.message, slots, context))
        if reason is FailureReason.ENGINE_EXITED and not says_out_of_memory(f"{fault.message}\n{log}"):
            return fault
        told = told_apart(fault.message, log, phase, slots, context)
        return Faulted(told.reason, told.message, fault.exit_status)

    async def _before_end(self) -> None:
        if self._available_before == 0 and self.pid is not None:
            self._back_bytes = await self._of_all(memory_back)
            await self.measure()
            self._available_before = read_machine().available_bytes


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
