"""The run folder is ours, closed, and no way to somebody else's; what is wrong with a folder is a typed error."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rewarm.errors import StateUnusable
from rewarm.paths import Paths


def test_the_run_folder_is_closed_to_others(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "state", tmp_path / "run")
    (tmp_path / "run").mkdir(mode=0o777)
    paths.make()
    assert stat.S_IMODE(paths.run.stat().st_mode) == 0o700
    paths.make()


def test_a_run_folder_that_is_a_link_is_refused_and_its_target_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    target.chmod(0o755)
    (tmp_path / "run").symlink_to(target)
    with pytest.raises(StateUnusable, match="symbolic link"):
        Paths(tmp_path / "state", tmp_path / "run").make()
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


def test_a_run_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(StateUnusable, match="belongs to another user"):
        Paths(tmp_path / "state", tmp_path / "run").make()


def test_a_state_folder_that_is_a_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StateUnusable):
        Paths.at(tmp_path / "state").make()
