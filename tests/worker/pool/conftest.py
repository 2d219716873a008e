from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which faults are switched on and hosts say what they are."""
    monkeypatch.setenv("TOY", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return tmp_path
