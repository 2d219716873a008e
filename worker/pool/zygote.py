"""``python -m worker.pool.zygote MODULE DESCRIPTOR AGENT``: imports an engine once, and makes processes like itself.

MODULE holds the engine's kind (:mod:`worker.pool.kind`), DESCRIPTOR is the channel to the agent, AGENT its pid. After
the import every process of the pool does the same: it waits for an order of the agent. *Fork* makes another such
process; *prepare* does what can be done ahead for one model, so that what is forked from it has that too; *go* makes it
the host of a replica, for good. All run one thread until then: a fork takes no other thread with it, and what such a
thread held stays locked for ever.

A forked process belongs to the agent, not to the process that it came from: forked twice, so that it falls to the agent
as subreaper; only then does it ask the kernel to die with its parent. So it survives whom it was forked from.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import time
from typing import Any, NoReturn

import msgspec

from worker.containment import die_with_parent
from worker.engines.host import run_host
from worker.engines.hostfile import HostFile, read_host_file
from worker.pool import marker, wire
from worker.pool.kind import Kind, key, load_kind

_ADOPTED_WITHIN_S = 5.0
_log = logging.getLogger("rewarm.worker.zygote")


class Pooled:
    """One process of the pool, on its own side of the channel."""

    def __init__(self, kind: Kind, channel: socket.socket, agent: int) -> None:
        self._kind = kind
        self._channel = channel
        self._agent = agent
        self._prepared: tuple[str, Any] | None = None  # for which registration, and what

    def run(self) -> int:
        """Until the agent closes the channel, or the status of the host that this became."""
        wire.send(self._channel, wire.Hello(os.getpid()))
        while True:
            data, descriptors = wire.receive(self._channel)
            if not data:
                return 0
            match wire.orders.decode(data):
                case wire.Fork():
                    self._fork(descriptors)
                case wire.Prepare(host, whole):
                    self._prepare(msgspec.json.decode(host, type=HostFile), whole)
                case wire.Go() as go:
                    return self._become_host(go, descriptors)

    # -- fork

    def _fork(self, descriptors: list[int]) -> None:
        why = self.unsafe()
        if why:
            wire.close_all(descriptors)
            wire.send(self._channel, wire.Refused(f"a fork would not be safe: {why}"))
            return
        began = time.monotonic()
        try:
            between = os.fork()
        except OSError as error:  # no memory, too many processes
            wire.close_all(descriptors)
            wire.send(self._channel, wire.Refused(f"no fork: {error}", shortage=True))
            return
        if between == 0:
            self._between(descriptors[0])
        wire.close_all(descriptors)
        _, status = os.waitpid(between, 0)
        if status != 0:  # it could not fork either, or was killed: the log says more
            code = os.waitstatus_to_exitcode(status)
            wire.send(self._channel, wire.Refused(f"no fork: half of it ended with status {code}", shortage=True))
            return
        wire.send(self._channel, wire.Done(time.monotonic() - began))

    def unsafe(self) -> str:
        """Why a child might hang or break; empty: nothing speaks against it."""
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 -- names are enough, and this is on the way of a wake
        engine = self._kind.unsafe()
        return engine or (f"{threads} threads run in it" if threads != 1 else "")

    def _between(self, descriptor: int) -> NoReturn:
        """The process between the two: its end gives its child to the agent."""
        try:
            if os.fork() != 0:
                os._exit(0)
            self._channel.close()
            self._channel = socket.socket(fileno=descriptor)
            os.setsid()
            os._exit(self.run() if _adopted(self._agent) else 1)
        except (BrokenPipeError, ConnectionError):
            os._exit(1)  # the agent gave up on it
        except BaseException:
            _log.exception("event=pooled-process-failed pid=%d", os.getpid())
            raise
        finally:
            os._exit(1)

    # -- prepare

    def _prepare(self, host: HostFile, whole: bool) -> None:
        began = time.monotonic()
        try:
            name = key(host)
            prepared, in_parts = self._kind.prepare(host, whole)
        except Exception as error:  # noqa: BLE001 -- whatever a checkpoint's files bring about, the agent has to hear of it
            _log.exception("event=not-prepared model=%s", host.spec.model)
            wire.send(self._channel, wire.Refused(f"{type(error).__name__}: {_line(error)}"))
            return
        self._prepared = name, prepared
        why = self.unsafe()
        if why:
            wire.send(self._channel, wire.Refused(f"after its preparation {why}"))
            return
        _freeze()
        wire.send(self._channel, wire.Done(time.monotonic() - began, in_parts=_line(in_parts)))

    # -- go

    def _become_host(self, go: wire.Go, descriptors: list[int]) -> int:
        (log,) = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ.update(go.environment)
        if not marker.mark(go.replica):
            _log.warning("event=not-marked replica=%s", go.replica)
        wire.send(self._channel, wire.Done())
        self._channel.close()
        serve = self._kind.serve(self._fitting(go.host_file), go.proven)
        return run_host(serve, ["worker.pool.zygote", go.host_file])

    def _fitting(self, host_file: str) -> Any:
        """What was prepared, if it was for this very host file; the host itself says what is wrong with the file."""
        from pathlib import Path

        if self._prepared is None:
            return None
        prepared_for, prepared = self._prepared
        try:
            return prepared if key(read_host_file(Path(host_file))) == prepared_for else None
        except (OSError, ValueError):
            return None


def _adopted(agent: int) -> bool:
    """Wait until this process is the agent's child, and die with it from then on. False when it is gone."""
    until = time.monotonic() + _ADOPTED_WITHIN_S
    while os.getppid() != agent:
        if time.monotonic() >= until:
            return False
        time.sleep(0.0005)  # the parent is about to end: there is nothing to wait on
    return die_with_parent(agent)


def _line(words: object) -> str:
    """For a table."""
    return " ".join(str(words).split())[:500]


def _freeze() -> None:
    """What is frozen no collector walks again, here or in a child: the pages stay shared."""
    gc.collect()
    gc.freeze()


def main(argv: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    _, module, descriptor, agent = argv
    if not die_with_parent(int(agent)):
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's: the agent decides
    channel = socket.socket(fileno=int(descriptor))
    channel.set_inheritable(False)
    kind = load_kind(module)
    kind.environment(os.environ)
    began = time.monotonic()
    try:
        kind.load()
    except Exception as error:  # noqa: BLE001 -- the agent says why there is no pool
        _log.exception("event=zygote-failed")
        wire.send(channel, wire.Refused(f"{type(error).__name__}: {error}"[:500]))
        return 1
    _freeze()
    wire.send(channel, wire.Done(time.monotonic() - began, kind.versions()))
    return Pooled(kind, channel, int(agent)).run()


if __name__ == "__main__":
    status = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # past a teardown that takes a second and matters to nobody
