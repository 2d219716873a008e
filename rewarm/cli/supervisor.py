"""Keeps child processes running: restarts with backoff, stops them in order, never leaves one behind."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from rewarm.errors import ChildFailed

log = logging.getLogger("rewarm.cli.supervisor")

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 10.0
STEADY_AFTER_S = 15.0
"""A child that ran this long starts with the first backoff again."""

KILL_MARGIN_S = 10.0
"""How much longer than its own shutdown deadline a child may take before SIGKILL."""

HURRY_S = 5.0
"""What is left to a child after the second signal."""

OPERATOR_EXITS = frozenset((2, 4))
"""Exit codes that name something only a person can mend (configuration, port). At the first start they end `serve` with
the same code; later on the child is restarted like after any other end, because what it needs may come back. Redis (3)
is not among them: it was found fit before the first child was started, so a child that cannot reach it met a Redis that
has died since, and that is back when the child is started again."""

Output = Callable[[str], None]


@dataclass(slots=True)
class Child:
    """``output`` takes the child's stderr line by line; without it the child writes to ours."""

    name: str
    command: Sequence[str]
    stop_within_s: float
    output: Output | None = None
    process: asyncio.subprocess.Process | None = None
    starts: int = 0
    log_tail: list[str] = field(default_factory=list)


class Supervisor:
    def __init__(self, children: Sequence[Child], *, before_start: Callable[[], Awaitable[None]] | None = None) -> None:
        self._children = list(children)
        self._before_start = before_start  # awaited before every start: what the child needs is up again
        self._stopping = asyncio.Event()
        self._signals = 0

    def signalled(self) -> None:
        """The first call stops in order, the next ones hurry."""
        self._signals += 1
        if self._signals == 1:
            log.info("stopping: requests that run may finish; signal again to hurry")
        else:
            log.warning("hurrying")
        self._stopping.set()
        for child in self._children:
            _send(child, signal.SIGTERM)

    def forward(self, signum: signal.Signals, name: str) -> None:
        for child in self._children:
            if child.name == name:
                _send(child, signum)

    async def run(self) -> None:
        """Until signalled, or until a child cannot start at all: raise ChildFailed with its exit code then."""
        try:
            async with asyncio.TaskGroup() as group:
                for child in self._children:
                    group.create_task(self._keep(child), name=f"keep-{child.name}")
        except* ChildFailed as failures:
            raise failures.exceptions[0] from None
        finally:
            await asyncio.shield(self._end_all())

    async def _keep(self, child: Child) -> None:
        backoff = FIRST_BACKOFF_S
        while not self._stopping.is_set():
            if self._before_start is not None:
                await self._before_start()
            started = time.monotonic()
            code = await self._once(child)
            if self._stopping.is_set():
                log.info("stopped child=%s code=%d", child.name, code)
                return
            ran_s = time.monotonic() - started
            if child.starts == 1 and code in OPERATOR_EXITS:
                raise ChildFailed(f"the {child.name} could not start", code)
            if ran_s > STEADY_AFTER_S:
                backoff = FIRST_BACKOFF_S
            log.error(
                "child ended, restarting child=%s %s ran_s=%.1f in_s=%.1f", child.name, _ending(code), ran_s, backoff
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff):
                    await self._stopping.wait()
            backoff = min(backoff * 2, LONGEST_BACKOFF_S)

    async def _once(self, child: Child) -> int:
        """One life of the child, to its end. Its own session: a terminal's Ctrl-C reaches it through us only, once."""
        pipe = asyncio.subprocess.PIPE if child.output is not None else None
        process = await asyncio.create_subprocess_exec(
            *child.command, stdin=asyncio.subprocess.DEVNULL, stderr=pipe, start_new_session=True
        )
        child.process = process
        child.starts += 1
        log.info("started child=%s pid=%d", child.name, process.pid)
        if self._stopping.is_set():  # signalled between the check and the start
            _send(child, signal.SIGTERM)
        try:
            waiting = self._wait(child, process)
            if child.output is None or process.stderr is None:
                return await waiting
            async with asyncio.TaskGroup() as group:
                group.create_task(_relay(process.stderr, child.output))
                ended = group.create_task(waiting)
            return ended.result()
        finally:
            child.process = None if process.returncode is not None else process

    async def _wait(self, child: Child, process: asyncio.subprocess.Process) -> int:
        """Its exit code; once we are stopping, no longer than it is allowed to take."""
        ended = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
            deadline = time.monotonic() + child.stop_within_s + KILL_MARGIN_S
            hurried = False
            while not ended.done():
                if self._signals > 1 and not hurried:
                    hurried, deadline = True, min(deadline, time.monotonic() + HURRY_S)
                if time.monotonic() >= deadline:
                    log.error("child does not stop, killed child=%s pid=%d", child.name, process.pid)
                    _send(child, signal.SIGKILL)
                    deadline = time.monotonic() + HURRY_S
                await asyncio.wait((ended,), timeout=0.2)
            return ended.result()
        finally:
            stopping.cancel()
            ended.cancel()

    async def _end_all(self) -> None:
        """Whatever went wrong above: no child is left."""
        self._stopping.set()
        left = [c for c in self._children if c.process is not None and c.process.returncode is None]
        for child in left:
            _send(child, signal.SIGTERM)
        for child in left:
            assert child.process is not None
            try:
                async with asyncio.timeout(HURRY_S):
                    await child.process.wait()
            except TimeoutError:
                _send(child, signal.SIGKILL)
                await child.process.wait()


def _send(child: Child, signum: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        with suppress(ProcessLookupError):
            child.process.send_signal(signum)


async def _relay(stream: asyncio.StreamReader, output: Output) -> None:
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # a line over the reader's limit: skipped, the pipe must not fill up
            continue
        if not line:
            return
        output(line.decode(errors="replace").rstrip("\n"))


def _ending(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"signal={signal.Signals(-code).name}"
    return f"code={code}"
