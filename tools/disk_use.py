"""A pytest plugin that keeps the suite's use of the disk small:  python -m pytest -p tools.disk_use …

Weights are some hundred megabytes a copy, and nobody sees how many copies lie about until a disk is full. What lies in
pytest's temporary folder is measured when a test ends. A test that ends with more than ``HELD_BYTES`` there fails, and
so does a run that leaves more than ``LEFT_BYTES`` when its last fixture has gone: fixtures of modules and packages
remove what they made. The summary names the tests that held most.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

HELD_BYTES = 2200 * 2**20
LEFT_BYTES = 50 * 2**20
SHOWN = 10

_PROPERTY = "disk_held_bytes"
_base = pytest.StashKey[Path]()
_held = pytest.StashKey[dict[str, int]]()


def used_bytes(folder: Path) -> int:
    """Bytes of disk under ``folder``: blocks, not lengths, and a file with several names once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for entry in _files(folder):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if status.st_nlink == 1 or (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """All files, as far as they are still there: engines remove theirs while this looks."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                yield entry


@pytest.fixture(scope="session", autouse=True)
def _nothing_large_is_left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    base = tmp_path_factory.getbasetemp()
    request.config.stash[_base] = base
    yield
    left = used_bytes(base)
    if left > LEFT_BYTES and not request.session.testsfailed:  # what failed tests leave is kept for a look at it
        folders = [path for path in base.iterdir() if path.is_dir() and not path.is_symlink()]
        largest = sorted(((used_bytes(path), path.name) for path in folders), reverse=True)
        names = ", ".join(f"{name} ({size >> 20} MiB)" for size, name in largest[:SHOWN] if size > 2**20)
        pytest.fail(f"the run leaves {left >> 20} MiB, {LEFT_BYTES >> 20} are allowed: {names}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    base = item.config.stash.get(_base, None)
    held = used_bytes(base) if base else 0
    item.user_properties.append((_PROPERTY, held))
    yield
    if held > HELD_BYTES:
        pytest.fail(f"{held >> 20} MiB lie in {base} when the test ends, {HELD_BYTES >> 20} are allowed")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_held] = {}
    config.pluginmanager.register(_Summary(config.stash[_held]))


class _Summary:
    """Reports come to the process that prints, whichever process ran the test."""

    def __init__(self, held: dict[str, int]) -> None:
        self._held = held

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name == _PROPERTY and isinstance(value, int):
                    self._held[report.nodeid] = value

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("most disk held")
        for nodeid in sorted(self._held, key=lambda nodeid: -self._held[nodeid])[:SHOWN]:
            terminalreporter.write_line(f"{self._held[nodeid] >> 20:6d} MiB  {nodeid}")
