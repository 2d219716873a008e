"""A process of the pool, as the agent sees it: its channel, its end, what it was told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterable, Sequence
from typing import TypeVar

from worker.pool import wire

A = TypeVar("A")


class Lost(Exception):
    """The process ended, does not answer, or says what nobody can read."""


class Refusal(Exception):
    """The process answered that it will not, and why."""


class Shortage(Refusal):
    """No descriptor, process or memory is left to do it with: nothing is wrong with the process, or with what was
    asked."""


class Member:
    """``key``: of the registration it is prepared for; empty: for any model.

    The process is a child of this one: by fork or, forked twice, by adoption. Its end is seen through a pidfd, because
    no child watcher knows of an adopted one. Raise OSError where there is no descriptor left for that.
    """

    def __init__(self, pid: int, channel: socket.socket, key: str = "") -> None:
        self.key = key
        self.channel = channel
        self.lock = asyncio.Lock()  # one order at a time
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._descriptor = -1
        try:
            self._descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._ended.set_result(self._collect())
            return
        self._loop.add_reader(self._descriptor, self._over)

    # -- as worker.starting.HostProcess

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    # -- as one of the pool

    async def ask(self, order: wire.Order, expected: type[A], within_s: float, descriptors: Sequence[int] = ()) -> A:
        """Its answer. Raise Refusal, or Lost; then it is of no use any more."""
        async with self.lock:
            with self._own_channel() as own:  # before it is asked: an answer that nobody hears would be the next one's
                try:
                    wire.send(own, order, descriptors)
                except OSError as error:
                    raise Lost(f"cannot be spoken to: {error}") from error
                return await expect(own, expected, within_s)

    def close(self) -> None:
        """It was told all it had to be told, or has to end by itself."""
        self.channel.close()

    async def end(self) -> None:
        """Now, whatever it does; returns when it is gone."""
        await end_all((self,))

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer hears that there will be none
        self.send_signal(signal.SIGKILL)

    def _own_channel(self) -> socket.socket:
        """Nobody closes it meanwhile, so that its number cannot become another's. Raise Shortage, Lost."""
        try:
            return self.channel.dup()
        except OSError as error:
            if self.channel.fileno() < 0:
                raise Lost(f"cannot be spoken to: {error}") from error
            raise Shortage(f"no descriptor: {error}") from error

    def _over(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        if not self._ended.done():
            self._ended.set_result(self._collect())

    def _collect(self) -> int:
        return _status(self._pid)


class Spawned(Member):
    """The first process of a pool, which the event loop started: its own child watcher collects it."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        super().__init__(process.pid, channel)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def _collect(self) -> int:
        return 0  # never asked for


async def end_all(members: Iterable[Member]) -> None:
    """All of them, at once; also where this is cancelled."""
    members = tuple(members)
    for member in members:
        member.kill()
    try:
        await asyncio.gather(*(member.wait() for member in members))
    finally:
        for member in members:
            member.close()


async def expect(channel: socket.socket, expected: type[A], within_s: float | None) -> A:
    """The next message of ``channel``, of that kind; without ``within_s`` whenever it comes. Raise Refusal, Lost."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        channel.setblocking(False)
        async with asyncio.timeout(within_s):
            while True:
                try:
                    data, descriptors = wire.receive(channel)
                    break
                except BlockingIOError:
                    number = channel.fileno()  # whoever calls this closes the channel only afterwards
                    loop.add_reader(number, readable.set)
                    try:
                        await readable.wait()
                    finally:
                        loop.remove_reader(number)
                    readable.clear()
    except TimeoutError as error:
        raise Lost(f"has not answered for {within_s:g} s") from error
    except OSError as error:
        raise Lost(f"its channel broke: {error}") from error
    wire.close_all(descriptors)
    if not data:
        raise Lost("ended")
    try:
        answer = wire.answers.decode(data)
    except ValueError as error:
        raise Lost(f"said what cannot be read: {error}") from error
    if isinstance(answer, wire.Refused):
        raise (Shortage if answer.shortage else Refusal)(answer.why)
    if not isinstance(answer, expected):
        raise Lost(f"answered {type(answer).__name__}")
    return answer


def _status(pid: int) -> int:
    """Exit status, a signal as a negative number; -SIGKILL where somebody else collected it."""
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status)
