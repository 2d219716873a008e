"""What a fresh engine is asked before its gate opens. The engine's answers are given here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, cast

import pytest

from rewarm.messages import ReplicaSpec
from worker.engines.host import HostContext
from worker.engines.hostfile import HostFile
from worker.engines.vllm import host as proving
from worker.engines.vllm.host import Running
from worker.engines.vllm.start import Engine
from worker.oom import OomWatch
from worker.report import Reporter

pytestmark = pytest.mark.asyncio

SOURCE = json.dumps({"tier": "source", "snapshot_id": None, "store": "", "reasons": [], "seconds": 1.0})
CHOICE = {"text": "Paris.", "message": {"content": "Paris."}, "token_ids": [7, 8]}


@pytest.mark.parametrize("makes_a_snapshot", [True, False])
async def test_a_fork_of_a_proved_one_still_gives_the_answer_of_the_snapshot_that_it_makes(
    makes_a_snapshot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model whose first engine left before its capture was done would never have a snapshot."""
    asked = []

    async def post(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(body)
        return 200, json.dumps({"choices": [CHOICE]}).encode()

    monkeypatch.setattr(proving, "poster", lambda *_: post)
    loaded = tmp_path / "loaded.json"
    loaded.write_text(SOURCE)
    spec = ReplicaSpec(model="m", engine="vllm", served_names=("m",), slots=1)
    host = HostFile(replica="m-1", agent_pid=1, spec=spec, socket="", report="", token="")
    captor: Any = object() if makes_a_snapshot else None
    running = Running(Engine(None, argparse.Namespace(), captor), loaded, proven=("source",))
    answer, recorded = await proving._prove(host, HostContext(Reporter(None), cast(OomWatch, None)), running)
    assert answer == "Paris."
    assert (recorded is not None and recorded.tokens == (7, 8)) is makes_a_snapshot
    assert len(asked) == (3 if makes_a_snapshot else 2)  # not the warm-up, which its like went through
