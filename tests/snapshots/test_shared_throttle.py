"""A limit that another process sets: followed while it is waited on, paused and lifted."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from snapshots import THROTTLE_ENV, LimitFile, SharedThrottle, throttle_from_env
from snapshots.errors import Cancelled

MB = 10**6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limit"


def test_without_a_limit_nobody_waits(path: Path) -> None:
    LimitFile(path)
    started = time.monotonic()
    SharedThrottle(path).wait(10**12)
    assert time.monotonic() - started < 1


def test_the_limit_holds_and_a_lifted_one_lets_go_of_who_waits(path: Path) -> None:
    file = LimitFile(path)
    file.limit(20 * MB)
    throttle = SharedThrottle(path)
    started = time.monotonic()
    throttle.wait(10 * MB)
    assert time.monotonic() - started >= 0.3  # half a second at that rate, less the burst
    file.limit(1)
    waits = threading.Thread(target=throttle.wait, args=(100 * MB,), daemon=True)
    waits.start()
    file.limit(None)
    waits.join(10)
    assert not waits.is_alive()


def test_paused_nothing_moves_until_it_is_lifted_or_cancelled(path: Path) -> None:
    file = LimitFile(path)
    file.limit(0)
    throttle, cancel, ended = SharedThrottle(path), threading.Event(), threading.Event()

    def read() -> None:
        throttle.wait(1)
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    assert not ended.wait(0.2)
    file.limit(None)
    assert ended.wait(5)
    file.limit(0)
    cancel.set()
    with pytest.raises(Cancelled):
        throttle.wait(1, cancel)


def test_another_process_follows_it(path: Path) -> None:
    file = LimitFile(path)
    file.limit(0)
    code = "from snapshots import throttle_from_env; throttle_from_env().wait(1)"
    process = subprocess.Popen([sys.executable, "-c", code], env={THROTTLE_ENV: str(path), "PYTHONPATH": "."})
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    file.limit(None)
    assert process.wait(20) == 0


def test_whoever_has_no_file_is_not_held_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THROTTLE_ENV, raising=False)
    assert throttle_from_env() is None
    monkeypatch.setenv(THROTTLE_ENV, str(path))
    assert throttle_from_env() is None
    LimitFile(path).close()
    assert not path.exists()
