"""``rewarm check`` of adapters: what is wrong with one is an error: nothing else says so before it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rewarm.cli.main import main
from tests.snapshots.adapters import write_adapter, write_base


def check(tmp_path: Path) -> Result:
    path = tmp_path / "c.yaml"
    path.write_text(
        "gateway: {listen: '127.0.0.1:0'}\n"
        "models:\n"
        "  base: {engine: vllm, source: base}\n"
        "  tuned:\n"
        "    adapter_of: base\n"
        "    source: tuned\n"
    )
    return CliRunner().invoke(main, ["check", str(path)])


def test_one_that_can_be_served(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "tuned")
    result = check(tmp_path)
    assert (result.exit_code, "models.tuned" in result.output) == (0, False), result.output


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        ({"r": 0}, "`r` is '0'"),
        ({"a": (4, 32)}, "changes a matrix of [64, 32]"),
        ({"r": 600, "a": (600, 64), "b": (64, 600)}, "rank 600 is too large"),
    ],
)
def test_one_that_cannot_is_an_error_with_its_line(tmp_path: Path, adapter: dict[str, Any], says: str) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "tuned", **adapter)
    result = check(tmp_path)
    assert result.exit_code == 2, result.output
    assert f"{tmp_path / 'c.yaml'}:6: error: models.tuned.source:" in result.output
    assert says in result.output


def test_a_folder_that_is_not_here_may_be_on_a_worker(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    result = check(tmp_path)
    assert result.exit_code == 0
    assert ":6: warning: models.tuned.source:" in result.output
