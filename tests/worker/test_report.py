"""The channel from an engine's processes to the agent: it never blocks or breaks an engine."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from pathlib import Path

import pytest

from rewarm.states import FailureReason, ReplicaState
from tests.worker.conftest import until
from worker.report import (
    BytesReport,
    FailedReport,
    GateReport,
    GateState,
    HelloReport,
    PhaseReport,
    Report,
    Reporter,
    serve_reports,
)


@pytest.mark.asyncio
async def test_reports_arrive_in_order_and_the_last_bytes_always(tmp_path: Path) -> None:
    got: list[Report] = []
    async with serve_reports(tmp_path / "r", got.append) as silent:
        reporter = Reporter(tmp_path / "r", "m-1")
        for done in range(1001):
            reporter.bytes(done, 1000)
        reporter.bytes(999, 2000)
        reporter.phase(ReplicaState.WARMING, 0.5, "words")
        reporter.failed(FailureReason.STALLED, "reason", 3)
        reporter.close()
        await until(lambda: got and isinstance(got[-1], FailedReport), "the last one came")
        await asyncio.wait_for(silent.wait(), 5)
    assert isinstance(got[0], HelloReport)
    sent = [report for report in got if isinstance(report, BytesReport)]
    assert len(sent) < 20
    assert BytesReport(done=1000, total=1000) in sent
    assert sent[-1] == BytesReport(done=999, total=2000)  # held back by the throttle, sent before the next phase
    assert got[-2] == PhaseReport(phase=ReplicaState.WARMING, fraction=0.5, message="words")


def test_an_agent_that_does_not_read_does_not_block_the_engine(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "r"))
    listener.listen()
    reporter = Reporter(tmp_path / "r", "m-1")
    began = time.monotonic()
    for served in range(20_000):
        reporter.gate(GateState(slots=4, served=served))
        reporter.bytes(served, 20_000)
    assert time.monotonic() - began < 5
    assert len(reporter._pending) < 200_000
    listener.close()
    reporter.phase(ReplicaState.WARMING)
    reporter.close()


def test_without_an_agent_it_does_nothing(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path / "nobody", "m-1")
    assert not reporter.connected
    reporter.phase(ReplicaState.WARMING)
    reporter.failed(FailureReason.STALLED, "nobody hears it")
    reporter.close()


@pytest.mark.asyncio
async def test_the_newest_gate_state_arrives_after_the_jam(tmp_path: Path) -> None:
    got: list[Report] = []
    async with serve_reports(tmp_path / "r", got.append):
        reporter = Reporter(tmp_path / "r", "m-1")
        for served in range(50_000):  # the loop does not run meanwhile: the socket fills
            reporter.gate(GateState(slots=4, served=served))

        def newest() -> bool:
            reporter.flush(0.0)
            return any(isinstance(r, GateReport) and r.gate.served == 49_999 for r in got)

        await until(newest, "the newest came")
        assert sum(isinstance(r, GateReport) for r in got) < 50_000
        reporter.close()


@pytest.mark.asyncio
async def test_noise_closes_its_connection_and_no_other(tmp_path: Path) -> None:
    got: list[Report] = []
    async with serve_reports(tmp_path / "r", got.append):
        for noise in (b"GET / HTTP/1.1\r\n\r\n", struct.pack("!I", 3) + b"abc"):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "r"))
            writer.write(noise)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
        reporter = Reporter(tmp_path / "r", "m-1")
        await until(lambda: got, "a good one is heard")
        reporter.close()
