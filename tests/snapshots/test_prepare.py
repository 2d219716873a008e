"""``python -m snapshots.prepare``: a checkpoint from a GGUF file, or one clear line and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from snapshots import PrepareFailed, Step, prepare_gguf
from snapshots.gguf import RECIPE
from snapshots.publish import publish

REPOSITORY = Path(__file__).parents[2]


def _prepare(*arguments: str) -> tuple[int, list[dict[str, object]]]:
    command = [sys.executable, "-m", "snapshots.prepare", *arguments, "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    status, lines = _prepare(str(tmp_path / "m"), "--gguf", str(tmp_path / "none.gguf"))
    assert status == 1 and "none.gguf" in str(lines[-1]["error"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_source_that_is_no_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "noise.gguf").write_bytes(b"noise" * 100)
    status, lines = _prepare(str(tmp_path / "m"), "--gguf", str(tmp_path / "noise.gguf"))
    assert status == 1 and "noise.gguf" in str(lines[-1]["error"])
    assert [path.name for path in tmp_path.iterdir()] == ["noise.gguf"]


def test_a_complete_folder_costs_nothing(tmp_path: Path) -> None:
    """Not even the import of torch."""
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"1234567")
    source = {"recipe": RECIPE, "gguf": "x.gguf", "gguf_bytes": 7}
    publish(tmp_path / "m", source, lambda folder: (folder / "model.safetensors").touch())
    steps: list[Step] = []
    assert not prepare_gguf(gguf, tmp_path / "m", steps.append)
    assert [step.fraction for step in steps] == [1.0]


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"1234567")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "letter.txt").touch()
    with pytest.raises(PrepareFailed, match="not made by rewarm"):
        prepare_gguf(tmp_path / "x.gguf", tmp_path / "m")
