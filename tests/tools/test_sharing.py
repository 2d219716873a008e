"""Two processes share the tests: a file stays in one of them, and so do all real engines."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.sharing import ENGINES, ROOT, group_of

FILES = ("tests/rewarm/test_units.py", "tests/rewarm/test_breaker.py", "tests/worker/test_eta.py")


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/worker/vllm/test_ends.py::test_missing_weights", ENGINES),
        ("tests/e2e/test_real_vllm.py::test_x[a::b]", ENGINES),
        ("tests/clients/test_on_vllm.py::test_x", ENGINES),
        (f"{FILES[0]}::test_durations[500ms-0.5]", FILES[0]),
    ],
)
def test_which_tests_stay_together(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_no_file_is_run_by_two_processes() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "2", "-v", "-p", "no:cacheprovider", *FILES]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    processes = defaultdict(set)
    for process, file in re.findall(r"^\[(gw\d)\] .* PASSED (\S+?)::", shown, re.MULTILINE):
        processes[file].add(process)
    assert {file: len(by) for file, by in processes.items()} == dict.fromkeys(FILES, 1)
    assert len(set.union(*processes.values())) == 2, "both had work"
