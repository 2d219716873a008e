"""A test that fills the disk is told so, and so is a run that leaves something behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.folders import linked_copy, passing_folder, unlinked
from tools.disk_use import used_bytes

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """With limits of 4 MiB for a test and 2 MiB for what is left."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\ntmp_path_retention_policy = failed")
    pytester.makeconftest(
        """
        import pytest, tools.disk_use

        tools.disk_use.HELD_BYTES, tools.disk_use.LEFT_BYTES = 4 * 2**20, 2 * 2**20

        @pytest.fixture(scope="module")
        def weights(tmp_path_factory):
            folder = tmp_path_factory.mktemp("weights")
            (folder / "w").write_bytes(bytes(3 * 2**20))
            return folder
        """
    )
    return pytester


def test_a_test_that_holds_much_fails_and_the_summary_names_the_greediest(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        def test_frugal(tmp_path):
            (tmp_path / "w").write_bytes(bytes(3 * 2**20))

        def test_greedy(tmp_path):
            (tmp_path / "w").write_bytes(bytes(5 * 2**20))
        """
    )
    result = run.runpytest_subprocess("-p", "tools.disk_use")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*5 MiB lie in * when the test ends, 4 are allowed*"])
    result.stdout.fnmatch_lines(["* 5 MiB *test_greedy", "* 3 MiB *test_frugal"])


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_a_fixture_leaves_fails_the_run(run: pytest.Pytester, workers: tuple[str, ...]) -> None:
    run.makepyfile("def test_reads(weights):\n    assert weights.exists()")
    result = run.runpytest_subprocess("-p", "tools.disk_use", *workers)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*the run leaves 3 MiB, 2 are allowed: weights0 (3 MiB)*"])


def test_files_are_counted_once_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "w").write_bytes(bytes(MIB))
    os.link(tmp_path / "a" / "w", tmp_path / "b")
    (tmp_path / "c").symlink_to(tmp_path / "b")
    assert MIB <= used_bytes(tmp_path) < MIB + 2**16


def test_a_linked_copy_takes_no_room_until_a_file_is_unlinked(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights").write_bytes(bytes(MIB))
    (source / "lock").write_bytes(b"small")
    (source / "weights").chmod(0o444)
    copy = linked_copy(source, tmp_path / "copy")
    assert used_bytes(tmp_path) < 2 * MIB
    assert (copy / "lock").stat().st_ino != (source / "lock").stat().st_ino
    unlinked(copy / "weights").write_bytes(b"other")
    assert (source / "weights").read_bytes() == bytes(MIB)


def test_a_passing_folder_is_gone_when_its_fixture_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    with passing_folder(tmp_path_factory, "weights") as folder:
        (folder / "w").write_bytes(b"1")
    assert not folder.exists()
