"""Fixtures for tests on a whole fleet of real processes."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A stack of several tests does not end with the one that fails: its logs are told there."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Stack):
                report.sections.append((f"logs of {name}", value.logs()))
    return report


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
