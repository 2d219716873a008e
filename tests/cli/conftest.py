"""Fixtures for commands against a real fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import EngineLog


@pytest.fixture
def engine_log(tmp_path: Path) -> EngineLog:
    return EngineLog(tmp_path / "engine.jsonl")
