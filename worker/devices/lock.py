"""One admission at a time on a machine, whichever agent asks: a lock file that also lists what has been promised.

Two agents that look at free memory at the same moment would both find room for a replica that takes half an hour to
touch its pages. So admission happens under ``flock``, and each promise is written into the same file, with the
agent's and the host's pid; promises of dead agents are dropped by whoever reads next.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from worker.devices.device import RAM
from worker.memory import Holding
from worker.procs import all_processes, pss_bytes, read_process

_log = logging.getLogger("rewarm.worker.devices")
_POLL_S = 0.02
_PATIENCE_S = 10.0  # holders need milliseconds; one that is stopped must not stop all others, who still measure memory


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    replica: str
    needs: dict[str, int]  # bytes by device
    agent_pid: int
    agent_start: int  # clock ticks: the pid alone may be another process by now
    host_pid: int = 0


def default_lock_path() -> Path:
    """Per user: agents of different users do not see each other's promises, only the memory they really use."""
    return Path(tempfile.gettempdir()) / f"rewarm-devices-{os.getuid()}.lock"


UsedBy = Callable[[Iterable[int]], Awaitable[Mapping[str, int]]]
"""Bytes that processes hold of GPUs, by device."""


async def _no_gpus(pids: Iterable[int]) -> Mapping[str, int]:
    return {}


class DeviceLock:
    """``async with lock.hold() as others`` gives the other agents' holdings by device, under the machine's lock."""

    def __init__(self, path: Path, used_by: UsedBy = _no_gpus) -> None:
        self._path = path
        self._used_by = used_by
        me = read_process(os.getpid())
        self._start = me.start if me is not None else 0
        self._mine: dict[str, Promise] = {}

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[dict[str, list[Holding]]]:
        descriptor = self._open()
        try:
            loop = asyncio.get_running_loop()
            until = loop.time() + _PATIENCE_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if loop.time() >= until:
                        _log.error("event=device-lock-stuck path=%s", self._path)
                        break
                    # Polled: a thread that blocks in flock cannot be cancelled, and would take the lock when nobody
                    # waits.
                    await asyncio.sleep(_POLL_S)
            promises = [p for p in self._read(descriptor) if p.agent_pid != os.getpid() and _lives(p)]
            others = await self._holdings(promises) if promises else {}
            yield others
            self._write(descriptor, [*promises, *self._mine.values()])
        finally:
            os.close(descriptor)  # releases the lock

    def promise(self, replica: str, needs: Mapping[str, int]) -> None:
        """Inside :meth:`hold`. Bytes by device."""
        self._mine[replica] = Promise(
            replica=replica, needs=dict(needs), agent_pid=os.getpid(), agent_start=self._start
        )

    async def started(self, replica: str, host_pid: int) -> None:
        promise = self._mine.get(replica)
        if promise is not None:
            self._mine[replica] = msgspec.structs.replace(promise, host_pid=host_pid)
            async with self.hold():
                pass

    async def release(self, replica: str) -> None:
        if self._mine.pop(replica, None) is not None:
            async with self.hold():
                pass

    async def _holdings(self, promises: list[Promise]) -> dict[str, list[Holding]]:
        out: dict[str, list[Holding]] = {}
        sessions = await asyncio.to_thread(_sessions, promises)
        for promise, session in zip(promises, sessions, strict=True):
            used = dict(await self._used_by(session)) if len(promise.needs) > 1 else {}
            if RAM in promise.needs:
                used[RAM] = await asyncio.to_thread(lambda pids: sum(map(pss_bytes, pids)), session)
            for device, need in promise.needs.items():
                out.setdefault(device, []).append(Holding(need, used.get(device, 0)))
        return out

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        if os.fstat(descriptor).st_uid != os.getuid():
            os.close(descriptor)
            raise PermissionError(f"{self._path} belongs to another user")
        return descriptor

    def _read(self, descriptor: int) -> list[Promise]:
        data = os.pread(descriptor, 2**20, 0)
        if not data.strip():
            return []
        try:
            return msgspec.json.decode(data, type=list[Promise])
        except msgspec.MsgspecError as error:
            _log.warning("event=device-file-unreadable path=%s error=%s", self._path, error)
            return []

    def _write(self, descriptor: int, promises: list[Promise]) -> None:
        data = msgspec.json.encode(promises)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)


def _lives(promise: Promise) -> bool:
    process = read_process(promise.agent_pid)
    return process is not None and process.start == promise.agent_start


def _sessions(promises: list[Promise]) -> list[list[int]]:
    """The pids of each promise's replica."""
    processes = all_processes()
    return [
        [p.pid for p in processes if promise.host_pid and promise.host_pid in (p.pid, p.session)]
        for promise in promises
    ]
