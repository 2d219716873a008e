"""What a gateway knows of a load from its last reading."""

from __future__ import annotations

import pytest

from fleet import FleetView
from gateway.view import View
from rewarm.messages import Explanation, Progress, ReplicaReport, WorkerBeat
from rewarm.states import ReplicaState

NOW_MS = 5000


def told(phase: ReplicaState, explained: str = "") -> Progress:
    """Of a load that was said to take 10 s more three seconds ago."""
    view = View(None, heartbeat_s=1.0)  # type: ignore[arg-type]  # nobody reads from Redis here
    progress = Progress(model="m", phase=phase, eta_s=10.0, at_ms=NOW_MS - 3000, message="its pod waits for a node")
    report = ReplicaReport(replica="r", model="m", spec_hash="x", state=phase, term=1, progress=progress)
    beat = WorkerBeat(worker="w", boot="", host="", pid=0, replicas=(report,))
    why = {"m": Explanation(model="m", text=explained)} if explained else {}
    view.adopt(FleetView(now_ms=NOW_MS, workers={"w": beat}, explanations=why))
    found = view.progress("m")
    assert found is not None
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("explained", ["", "waits for room"])
async def test_an_eta_is_counted_down_since_it_was_told_whatever_else_is_said(explained: str) -> None:
    waits = told(ReplicaState.POD_PENDING, explained)
    assert waits.eta_s == pytest.approx(7.0, abs=0.5)
    assert waits.message == (explained or "its pod waits for a node")


@pytest.mark.asyncio
async def test_what_a_model_waits_for_is_no_more_said_once_it_loads() -> None:
    assert told(ReplicaState.STARTING, "waits for room").message == "its pod waits for a node"
