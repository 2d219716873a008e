"""What every engine's host shares: read the host file, die with the agent, report, classify what went wrong, exit.

A host is a coroutine ``serve(host, context)`` given to :func:`run_host`. It reports phases through
``context.reporter``, raises :class:`HostFailed` with a reason when the load or the running engine fails, and returns
when it has been asked to stop (``context.stopping``). vLLM's host reuses :func:`make_gate`,
:mod:`worker.engines.proof` and this frame.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from rewarm.messages import UnknownSchema
from rewarm.states import FailureReason
from worker.containment import die_with_parent
from worker.engines.hostfile import HostFile, read_host_file
from worker.gate.gate import Gate
from worker.oom import OomWatch, says_out_of_memory
from worker.report import REPORT_ENV, Reporter

_log = logging.getLogger("rewarm.worker.host")


class HostFailed(Exception):
    """The load or the running engine failed; reported to the agent as it is."""

    def __init__(self, reason: FailureReason, message: str, exit_status: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.exit_status = exit_status


@dataclass(slots=True)
class HostContext:
    """``stopping`` is set by SIGTERM or SIGINT. The agent has drained the gate by then: end quickly."""

    reporter: Reporter
    oom: OomWatch
    stopping: asyncio.Event = field(default_factory=asyncio.Event)


Serve = Callable[[HostFile, HostContext], Awaitable[None]]


def run_host(serve: Serve, argv: list[str]) -> int:
    """The whole of a host's ``main``. Exit status: 0 stopped as asked, 1 failed (reported), 2 called wrongly."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    if len(argv) != 2:
        _log.error("usage: python -m %s HOSTFILE", argv[0] if argv else "worker.engines")
        return 2
    try:
        host = read_host_file(Path(argv[1]))
    except (OSError, UnknownSchema) as error:
        _log.error("host file: %s", error)
        return 2
    if not die_with_parent(host.agent_pid):
        _log.error("the agent %d is gone already", host.agent_pid)
        return 1
    os.environ[REPORT_ENV] = host.report  # for processes that the engine starts
    reporter = Reporter(host.report, host.replica)
    context = HostContext(reporter, OomWatch())
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_until_stopped(serve, host, context))
    except HostFailed as failure:
        _report_failure(context, failure.reason, failure.message, failure.exit_status)
        return 1
    except MemoryError as error:
        _report_failure(context, FailureReason.OUT_OF_MEMORY, f"the host ran out of memory: {error}", None)
        return 1
    except Exception as error:  # noqa: BLE001  # whatever it was, the agent has to hear of it
        _log.exception("event=host-failed")
        text = f"{type(error).__name__}: {error}"
        reason = FailureReason.OUT_OF_MEMORY if says_out_of_memory(text) else FailureReason.ENGINE_EXITED
        _report_failure(context, reason, text, None)
        return 1
    reporter.close()
    return 0


async def _until_stopped(serve: Serve, host: HostFile, context: HostContext) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, context.stopping.set)
    await serve(host, context)


def _report_failure(context: HostContext, reason: FailureReason, message: str, exit_status: int | None) -> None:
    _log.error("event=failed reason=%s message=%s", reason.value, message)
    context.reporter.failed(reason, message, exit_status)
    context.reporter.close()


def make_gate(host: HostFile, reporter: Reporter) -> Gate:
    """Closed to requests until :func:`announce_ready`; the host's own warm-up comes in with the control token."""
    return Gate(
        host.spec.slots, token=host.token, secret=host.secret, on_change=reporter.gate, on_times=reporter.timing
    )


def announce_ready(gate: Gate, reporter: Reporter, endpoint: str, answer: str = "") -> None:
    """Open the gate, then say so: a gateway that hears of the endpoint finds it open."""
    gate.open()
    reporter.ready(endpoint, answer)
