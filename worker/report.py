"""What an engine's host tells the agent while it loads and serves: length-prefixed msgpack over a unix stream socket.

The client side (:class:`Reporter`) is synchronous and never blocks for long, so that it can be called from a loader
that counts bytes inside vLLM's engine-core process as well as from an event loop. A broken or full channel never
breaks the engine: what cannot be sent is dropped, except the newest of each coalesced kind.

The server side (:func:`serve_reports`) runs in the agent. One socket per replica; several processes of a replica may
connect to it. The path reaches every process of the replica in the environment variable ``REWARM_REPORT``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from pathlib import Path

import msgspec

from rewarm.states import FailureReason, ReplicaState

REPORT_ENV = "REWARM_REPORT"

_log = logging.getLogger("rewarm.worker.report")
_HEADER = struct.Struct("!I")
_LARGEST = 256 * 1024  # a report is a few hundred bytes; a log tail a few KiB
_PENDING_LIMIT = 64 * 1024  # beyond this the agent does not read: numbers are dropped, verdicts kept
_BYTES_EVERY_S = 0.05  # a loader reports each chunk; the agent publishes 4 times a second


class Rest(StrEnum):
    """Whether an engine has its memory."""

    AWAKE = "awake"
    FALLING = "falling"
    ASLEEP = "asleep"
    WAKING = "waking"


class GateState(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of a gate at one moment. Times are seconds of CLOCK_MONOTONIC, which all processes of a machine
    share."""

    slots: int
    running: int = 0
    reserved: int = 0
    draining: bool = False
    waiting_band: int | None = None
    last_activity_s: float = 0.0  # start of ready, then the last completion
    served: int = 0
    peak: int = 0  # most requests that ever ran at once
    rest: Rest = Rest.AWAKE
    can_sleep: bool = False
    no_sleep: str = ""  # why it cannot
    may_wake: bool = False  # while it sleeps: the agent keeps memory for it, a request need not ask
    wakes: int = 0
    wake_began_s: float = 0.0  # of the last one, or of the one that is on its way
    wake_ended_s: float = 0.0
    keep_alive_s: float | None = None  # as the last request to name one had it; below 0: for ever

    @property
    def free(self) -> int:
        return max(0, self.slots - self.running - self.reserved)

    @property
    def quiet(self) -> bool:
        return self.running == 0 and self.reserved == 0


class HelloReport(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First on every connection."""

    replica: str
    pid: int


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True, tag="phase"):
    """The load is in ``phase``, ``fraction`` (0..1) of it done where that is known. Each one counts as progress."""

    phase: ReplicaState
    fraction: float = 0.0
    message: str = ""


class BytesReport(msgspec.Struct, frozen=True, kw_only=True, tag="bytes"):
    """Bytes of weights read so far, of how many. Counts as progress only when ``done`` grew."""

    done: int
    total: int


class ReadyReport(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Verified by a real answer; the gate listens at ``endpoint`` (``unix:/path`` or ``tcp:host:port``)."""

    endpoint: str
    answer: str = ""  # what the engine said when it was verified, for the log


class GateReport(msgspec.Struct, frozen=True, kw_only=True, tag="gate"):
    """The ledger changed. Coalesced: only the newest matters."""

    gate: GateState


class FailedReport(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The load or the running engine failed; the host exits after it."""

    reason: FailureReason
    message: str
    exit_status: int | None = None


class NoteReport(msgspec.Struct, frozen=True, kw_only=True, tag="note"):
    """Numbers that the agent passes on, for example the KV cache's real size. Not progress."""

    numbers: dict[str, float]


class LoadedReport(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """What the weights came from: "source", or a flavour and a snapshot's name. Not progress."""

    weights: str
    seconds: float = 0.0


class AdaptersReport(msgspec.Struct, frozen=True, kw_only=True, tag="adapters"):
    """Which adapters the engine is without, and why. Before it is ready. Not progress."""

    broken: dict[str, str]


class TimingReport(msgspec.Struct, frozen=True, kw_only=True, tag="timing"):
    """How long answers took, in seconds: to their first byte, and from one piece of a stream to the next. A sample of
    them, where there were very many."""

    first: list[float] = []
    gaps: list[float] = []


Report = (
    TimingReport
    | AdaptersReport
    | LoadedReport
    | HelloReport
    | PhaseReport
    | BytesReport
    | ReadyReport
    | GateReport
    | FailedReport
    | NoteReport
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def frame(report: Report) -> bytes:
    payload = _encoder.encode(report)
    return _HEADER.pack(len(payload)) + payload


class Reporter:
    """Client side. Thread-safe. After a fork call :meth:`from_env` again: the connection belongs to one process."""

    def __init__(self, path: str | os.PathLike[str] | None, replica: str = "") -> None:
        self._lock = threading.Lock()
        self._pending = bytearray()
        self._bytes: BytesReport | None = None  # held back by the throttle
        self._bytes_sent_at = float("-inf")
        self._gate: GateReport | None = None
        self._socket: socket.socket | None = None
        if path:
            self._socket = _connect(os.fspath(path))
        self.send(HelloReport(replica=replica, pid=os.getpid()))

    @classmethod
    def from_env(cls) -> Reporter:
        """For processes that the host starts (vLLM's engine core): without the variable, a reporter that does
        nothing."""
        return cls(os.environ.get(REPORT_ENV), os.environ.get("REWARM_REPLICA", ""))

    @property
    def connected(self) -> bool:
        return self._socket is not None

    # -- what hosts say

    def phase(self, phase: ReplicaState, fraction: float = 0.0, message: str = "") -> None:
        self.send(PhaseReport(phase=phase, fraction=fraction, message=message))

    def bytes(self, done: int, total: int) -> None:
        """Cheap to call per chunk: at most 20 a second are sent, the last one always."""
        report = BytesReport(done=done, total=total)
        now = time.monotonic()
        if done < total and now - self._bytes_sent_at < _BYTES_EVERY_S:
            self._bytes = report
            return
        self._bytes_sent_at = now
        self._bytes = None
        self.send(report)

    def gate(self, gate: GateState) -> None:
        self._gate = GateReport(gate=gate)
        self._flush_soft()

    def timing(self, first: list[float], gaps: list[float]) -> None:
        if len(self._pending) <= _PENDING_LIMIT:
            self.send(TimingReport(first=first, gaps=gaps))

    def ready(self, endpoint: str, answer: str = "") -> None:
        self.send(ReadyReport(endpoint=endpoint, answer=answer))

    def failed(self, reason: FailureReason, message: str, exit_status: int | None = None) -> None:
        """Wait up to a second for the agent to take it: the process ends after this."""
        self.send(FailedReport(reason=reason, message=message[:8192], exit_status=exit_status))
        self.flush(1.0)

    def note(self, **numbers: float) -> None:
        self.send(NoteReport(numbers=numbers))

    # -- sending

    def send(self, report: Report) -> None:
        with self._lock:
            if self._socket is None:
                return
            if self._bytes is not None and not isinstance(report, BytesReport):
                self._pending += frame(self._bytes)  # keeps the order: the last bytes, then the next phase
                self._bytes = None
            if isinstance(report, BytesReport) and len(self._pending) > _PENDING_LIMIT:
                return
            self._pending += frame(report)
            self._write()

    def flush(self, timeout_s: float) -> bool:
        """Send what is pending, waiting at most ``timeout_s``. True when nothing is left."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if self._bytes is not None:
                    self._pending += frame(self._bytes)
                    self._bytes = None
                self._write()
                if self._socket is None or not self._pending:
                    return not self._pending
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)

    def close(self) -> None:
        self.flush(0.2)
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _flush_soft(self) -> None:
        with self._lock:
            self._write()

    def _write(self) -> None:
        """Non-blocking; a partial write stays in front of the next one. Called with the lock held."""
        if self._socket is None:
            self._pending.clear()
            return
        if self._gate is not None and len(self._pending) <= _PENDING_LIMIT:
            self._pending += frame(self._gate)
            self._gate = None
        while self._pending:
            try:
                sent = self._socket.send(self._pending)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                _log.warning("report channel broken: %s; the engine goes on without it", error)
                self._socket.close()
                self._socket = None
                self._pending.clear()
                return
            del self._pending[:sent]


def _connect(path: str) -> socket.socket | None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    channel.settimeout(2.0)
    try:
        channel.connect(path)
    except OSError as error:
        _log.warning("no report channel at %s: %s", path, error)
        channel.close()
        return None
    channel.setblocking(False)
    return channel


@contextlib.asynccontextmanager
async def serve_reports(path: Path, receive: Callable[[Report], None]) -> AsyncIterator[asyncio.Event]:
    """Listen at ``path`` (mode 0600) and call ``receive`` for each report of any connection, in the loop's thread.

    Yields an event that is set while no connection is open: after a host's exit, everything it said has been received.
    Bytes that are no report close their connection and are logged: the agent trusts no host with its own health.
    """
    connections: set[asyncio.Task[None]] = set()
    silent = asyncio.Event()
    silent.set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        silent.clear()
        try:
            await _read_reports(reader, receive)
        except asyncio.CancelledError:
            # StreamReaderProtocol would log this as an unhandled error of its callback; ending here is the whole
            # intent.
            pass
        finally:
            connections.discard(task)
            if not connections:
                silent.set()
            writer.close()

    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(connection, path=os.fspath(path))
    path.chmod(0o600)
    try:
        yield silent
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        if connections:
            await asyncio.wait(connections, timeout=1.0)
        path.unlink(missing_ok=True)


async def _read_reports(reader: asyncio.StreamReader, receive: Callable[[Report], None]) -> None:
    try:
        while True:
            (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
            if length > _LARGEST:
                raise ValueError(f"a report of {length} bytes")
            receive(_decoder.decode(await reader.readexactly(length)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    except (ValueError, msgspec.MsgspecError) as error:
        _log.error("unreadable report, connection closed: %s", error)
