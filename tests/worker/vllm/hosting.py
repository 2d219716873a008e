"""A stand-in for the agent: starts an engine's host, listens to its reports, talks to its gate. Synchronous, so that
one engine can serve many tests."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rewarm.messages import ReplicaSpec
from worker.containment import members
from worker.engines.hostfile import HOST_MODULES, HostFile, write_host_file
from worker.procs import Process
from worker.report import FailedReport, PhaseReport, ReadyReport, Report, serve_reports

REPOSITORY = Path(__file__).parents[3]
TOKEN = "control-token"
START_S = 240.0  # of a cold vLLM on a busy machine

_numbers = itertools.count()

R = TypeVar("R")


class Reports:
    """What the host has said so far, with waiting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.all: list[Report] = []

    def receive(self, report: Report) -> None:
        with self._changed:
            self.all.append(report)
            self._changed.notify_all()

    def of(self, kind: type[R]) -> list[R]:
        return [report for report in list(self.all) if isinstance(report, kind)]

    def wait(self, found: Callable[[list[Report]], bool], within_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: found(self.all), within_s)


class Host:
    """``temporary`` is where its processes put their temporary files: nobody else's lie there."""

    def __init__(
        self, folder: Path, temporary: Path, replica: str, process: subprocess.Popen[bytes], reports: Reports
    ) -> None:
        self.folder = folder
        self.temporary = temporary
        self.replica = replica
        self.process = process
        self.reports = reports
        self.socket = str(folder / "gate.sock")

    def wait_ready(self) -> ReadyReport:
        ended = self.reports.wait(
            lambda all_: any(isinstance(report, ReadyReport | FailedReport) for report in all_), START_S
        )
        ready = self.reports.of(ReadyReport)
        assert ended and ready, f"not ready: {self.reports.of(FailedReport)}\n{self.log()[-4000:]}"
        return ready[0]

    def wait_failed(self, within_s: float) -> FailedReport:
        """The failure it reported; it has also exited with status 1 by then."""
        self.process.wait(within_s)
        self.reports.wait(lambda all_: any(isinstance(report, FailedReport) for report in all_), 1.0)
        failed = self.reports.of(FailedReport)
        assert failed, self.log()[-4000:]
        assert self.process.returncode == 1
        return failed[0]

    def wait_phase(self, phase: str) -> None:
        assert self.reports.wait(
            lambda all_: any(isinstance(report, PhaseReport) and report.phase == phase for report in all_), START_S
        ), self.log()[-4000:]

    def log(self) -> str:
        return (self.folder / "engine.log").read_text(errors="replace")

    def members(self) -> list[Process]:
        return members([f"REWARM_REPLICA={self.replica}"], self.process.pid)

    def engine_core(self) -> Process:
        (core,) = [process for process in self.members() if process.parent == self.process.pid]
        return core

    def request(
        self, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        connection = UnixConnection(self.socket)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        return connection.getresponse(), connection

    def json(self, path: str, body: Any) -> tuple[int, Any]:
        response, connection = self.request(path, body)
        with contextlib.closing(connection):
            return response.status, json.loads(response.read())

    def gate(self) -> dict[str, Any]:
        response, connection = self.request("/.rewarm/state", method="GET", headers={"X-Rewarm-Control": TOKEN})
        with contextlib.closing(connection):
            state: dict[str, Any] = json.loads(response.read())
            return state


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("gate", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def question(text: str = "What is the capital of France?", **more: Any) -> dict[str, Any]:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0}
    return {**body, **more}


def events(response: http.client.HTTPResponse) -> Iterator[str]:
    """The data of each server-sent event."""
    for line in response:
        if line.startswith(b"data: "):
            yield line[6:].decode().rstrip("\n")


def text_of(chunks: list[str]) -> str:
    deltas = [json.loads(chunk)["choices"] for chunk in chunks if chunk != "[DONE]"]
    return "".join(choices[0]["delta"].get("content") or "" for choices in deltas if choices)


@contextlib.contextmanager
def hosted(folder: Path, spec: ReplicaSpec, **host_fields: Any) -> Iterator[Host]:
    """Start a host; afterwards nothing of it is left, whatever happened."""
    folder.mkdir(parents=True, exist_ok=True)
    reports = Reports()
    replica = f"{folder.name}-{os.getpid()}-{next(_numbers)}"  # also of other test runs on this machine
    with (
        _reporting(folder / "report.sock", reports),
        tempfile.TemporaryDirectory(prefix="rw", ignore_cleanup_errors=True) as temporary,
    ):
        file = folder / "host.json"
        write_host_file(
            file,
            HostFile(
                replica=replica,
                agent_pid=os.getpid(),
                spec=spec,
                socket=str(folder / "gate.sock"),
                report=str(folder / "report.sock"),
                token=TOKEN,
                **host_fields,
            ),
        )
        environment = {**os.environ, **spec.env, "REWARM_REPLICA": replica, "TMPDIR": temporary}
        with (folder / "engine.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", HOST_MODULES[spec.engine], str(file)],
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        host = Host(folder, Path(temporary), replica, process, reports)
        try:
            yield host
        finally:
            for member in host.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
            process.wait(10)


@contextlib.contextmanager
def _reporting(path: Path, reports: Reports) -> Iterator[None]:
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serve_reports(path, reports.receive):
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(5)
    try:
        yield
    finally:
        stop.set()
        thread.join(5)


def eventually(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """For what can only be looked at: /proc, and the gate's ledger."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, f"not within {within_s} s: {what}"
        time.sleep(0.02)
