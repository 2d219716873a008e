"""Fixtures for tests on a whole fleet of real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


class EngineLog:
    """The fake engines' own record of what they ran: the truth about concurrency and order, measured at the engine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, Any]]:
        """Events of clients' requests; warm-up and verification, which carry no tenant, are left out."""
        text = self.path.read_text() if self.path.exists() else ""
        return [line for line in map(json.loads, text.splitlines()) if line["tenant"]]

    def order(self) -> list[str]:
        return [line["tenant"] for line in self.lines() if line["event"] == "start"]

    def count(self, event: str) -> int:
        return sum(line["event"] == event for line in self.lines())

    def peak(self) -> int:
        return max((line["running"] for line in self.lines()), default=0)


@pytest.fixture
def engine_log(tmp_path: Path) -> EngineLog:
    return EngineLog(tmp_path / "engine.jsonl")
