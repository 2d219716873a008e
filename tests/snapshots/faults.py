"""Random faults against a real store: processes killed on any line, disks that fill up, bits that flip.

``python -m tests.snapshots.faults --count 1000`` runs them and prints what happened. After each fault the store is
looked at from outside: everything that is visible is whole and has the right bytes, and after a collection no space
is lost.

A process is killed on the N-th line that it executes in our code (and in shutil), N random; or on the N-th that it has
not executed before, so that what happens once is hit as often as what happens in a loop. Every place between two system
calls is hit sooner or later, without a hook in the product.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import snapshots
from snapshots import durable
from snapshots.capture import capture_checkpoint
from snapshots.errors import (
    CheckpointError,
    SnapshotError,
    SnapshotExists,
    SnapshotNotFound,
    SnapshotQuarantined,
    StoreFull,
)
from snapshots.restore import HostMemory, restore_weights, verify_snapshot
from snapshots.store import Store
from tests.snapshots.making import make_checkpoint

ROWS = 40_001  # 5 MB: two chunks
SEEDS = (1, 2, 3)

_OTHERS = ("quarantine", "collect")
_OURS = str(Path(snapshots.__file__).parent)


class Bench:
    """One store, three checkpoints, and the faults."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.expected: dict[int, dict[str, bytes]] = {}
        self.id_of: dict[int, str] = {}
        self.counts: Counter[str] = Counter()
        self.faults = 0  # those of them that were one
        self.damaged = 0  # which one we ourselves broke, to see it replaced
        for number in SEEDS:
            self.expected[number] = make_checkpoint(folder / str(number), seed=number, rows=ROWS)
        self.root = folder / "store"
        self.store = self._open()
        self._lines: dict[str, dict[str, int]] = {}  # of each action, all of them and different ones
        for number in SEEDS:
            self.id_of[number] = capture_checkpoint(self.store, "m", folder / str(number)).snapshot_id

    def _open(self, root: Path | None = None) -> Store:
        return Store(root or self.root, floor_bytes=0)

    # --- what may be going on when the fault comes ---

    def _capture(self) -> None:
        with suppress(SnapshotExists):
            capture_checkpoint(self._open(), "m", self.folder / str(self.random.choice(SEEDS)))

    def _evict(self) -> None:
        with suppress(SnapshotNotFound, SnapshotQuarantined):
            self._open().evict(self.id_of[self.random.choice(SEEDS)])

    def _restore(self) -> None:
        with suppress(SnapshotNotFound, SnapshotQuarantined):
            with self._open().lease("m") as lease:
                restore_weights(lease, HostMemory())

    def _quarantine(self) -> None:
        with suppress(SnapshotNotFound, SnapshotQuarantined):
            self._open().quarantine("m", "operator", "on purpose")

    def _replace(self) -> None:
        """A snapshot was damaged, and the same content takes its place."""
        with suppress(SnapshotExists):
            capture_checkpoint(self._open(), "m", self.folder / str(self.damaged))

    def _collect(self) -> None:
        self._open().collect(quarantined=self.random.random() < 0.5)

    # --- faults ---

    def fault(self) -> str:
        kind = self.random.choice((*(["kill"] * 6), "flip", "flip", "full", "limit"))
        found: str = getattr(self, f"_{kind}")()
        self.counts[found] += 1
        self.faults += "ended before" not in found and found != "fitted after all"
        self.check()
        return found

    def _kill(self) -> str:
        name = self.random.choice(("capture", "capture", "capture", "replace", "evict", "evict", "restore", *_OTHERS))
        action: Callable[[], None] = getattr(self, f"_{name}")
        self._prepare(name)
        # The first time, and a little later than its last line, it comes to its end: that is a case too.
        kind = self.random.choice(("all", "new", "new"))
        at = self.random.randint(1, int(self._lines[name][kind] * 1.02)) if name in self._lines else 0
        status, lines = _in_child(action, at, kind)
        self._lines[name] = {k: max(n, self._lines.get(name, {}).get(k, 1)) for k, n in lines.items()}
        return f"killed while {name}" if os.WIFSIGNALED(status) else f"{name} ended before its kill"

    def _prepare(self, name: str) -> None:
        """Something to evict, and something not there yet."""
        self.damaged = 0
        if name == "replace":
            self.damaged = self.random.choice(SEEDS)
            with suppress(SnapshotNotFound, SnapshotQuarantined):
                (self.store.find(self.id_of[self.damaged]).folder / "config.json").unlink()
            return
        if name == "capture" and self.store.list():
            self._evict()
        elif name != "capture" and len(self.store.list()) < 2:
            self._capture()

    def _flip(self) -> str:
        with suppress(SnapshotExists):
            capture_checkpoint(self.store, "m", self.folder / str(self.random.choice(SEEDS)))
        entries = [entry for entry in self.store.list() if not entry.quarantined]
        entry = self.random.choice(entries)
        path = self.random.choice(sorted(path for path in entry.folder.rglob("*") if path.stat().st_size))
        raw = bytearray(path.read_bytes())
        raw[self.random.randrange(len(raw))] ^= 1 << self.random.randrange(8)
        path.chmod(0o644)
        path.write_bytes(raw)
        try:
            with self.store.lease(entry.snapshot_id) as lease:
                verify_snapshot(lease)
        except CheckpointError as error:
            _require(path.name in str(error), f"{error} does not name {path}")
            self.store.quarantine(entry.snapshot_id, "digest", str(error))
            return "flipped bit found"
        raise AssertionError(f"a flipped bit in {path} was not noticed")

    def _full(self) -> str:
        """A disk of its own, too small for one more snapshot by a random amount."""
        small = self.folder / "small"
        small.mkdir(exist_ok=True)
        size = self.random.randint(64 * 1024, 7_000_000) // 4096 * 4096
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", small], check=False, capture_output=True
        )
        if mounted.returncode:
            return self._limit()
        promise = os.posix_fallocate
        try:
            if self.random.random() < 0.5:
                os.posix_fallocate = _no_promise
            with suppress(StoreFull):
                store = Store(small / "store", floor_bytes=-(2**40))  # admission is not what is tested here
                number = self.random.choice(SEEDS)
                capture_checkpoint(store, "m", self.folder / str(number))
                self._right(store, number)
                return "fitted after all"
            store = Store(small / "store", floor_bytes=0)
            assert store.list() == []
            assert list((store.root / "staging").iterdir()) == []
            return "disk full"
        except OSError as error:
            _require(error.errno == errno.ENOSPC, str(error))  # the store itself had no room for its first folders
            return "disk full"
        finally:
            os.posix_fallocate = promise
            subprocess.run(["umount", small], check=True)

    def _limit(self) -> str:
        """A process that may not write files larger than a random size."""
        limit = self.random.randint(1, 5_200_000)
        self._prepare("capture")

        def limited() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            with suppress(StoreFull):
                self._capture()

        status, _ = _in_child(limited, 0)
        assert status == 0, "a file size limit ended in something else than StoreFull"
        return "file size limit"

    # --- the view from outside ---

    def check(self) -> None:
        store = self._open()
        number_of = {snapshot: number for number, snapshot in self.id_of.items()}
        for entry in store.list():
            if entry.quarantined:
                continue
            number = number_of[entry.snapshot_id]
            if entry.problem is not None:
                assert number == self.damaged, f"a torn snapshot is visible: {entry.problem}"
                store.evict(entry.snapshot_id)
                continue
            self._right(store, number, entry.snapshot_id)
        store.collect()
        for name in ("staging", "trash"):
            left = list((store.root / name).iterdir())
            assert not left, f"{name} holds {left} after a collection"
        known = sum(entry.size_bytes for entry in store.list())
        used = durable.tree_bytes(store.root)
        assert used - known < 64 * 1024, f"{used - known} bytes are lost"

    def _right(self, store: Store, number: int, snapshot: str = "m") -> None:
        memory = HostMemory()
        with store.lease(snapshot) as lease:
            restore_weights(lease, memory)
            verify_snapshot(lease)
        got = {name: bytes(view.data) for name, view in memory.tensors().items()}
        assert got == self.expected[number], f"{snapshot} has wrong weights"


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise AssertionError(otherwise)


def _no_promise(*_: int) -> None:
    raise OSError(errno.EOPNOTSUPP, "as some network file systems do")


def _in_child(action: Callable[[], None], kill_at: int, kind: str = "all") -> tuple[int, dict[str, int]]:
    """Run it in a forked process that is killed at its ``kill_at``-th line. Return its wait status and lines."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            counter = _Lines(kill_at, kind)
            threading.settrace(counter.trace)
            sys.settrace(counter.trace)
            action()
            sys.settrace(None)
            os.write(writing, json.dumps(counter.counts()).encode())
            os._exit(0)
        except (SnapshotError, CheckpointError) as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(3)
        finally:
            os._exit(4)
    os.close(writing)
    answer = os.read(reading, 100)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the process ended with {status:#x}"
    return status, json.loads(answer or b'{"all": 1, "new": 1}')


class _Lines:
    def __init__(self, kill_at: int, kind: str) -> None:
        self._all = 0
        self._new: set[tuple[str, int]] = set()
        self._kill_at, self._kind = kill_at, kind

    def counts(self) -> dict[str, int]:
        return {"all": self._all, "new": len(self._new)}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        return self._line if file.startswith(_OURS) or file.endswith(("shutil.py", "pathlib.py")) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._all += 1
        self._new.add((frame.f_code.co_filename, frame.f_lineno))
        if self._kill_at and self.counts()[self._kind] >= self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def run(count: int, seed: int) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="rewarm-faults-"))
    start = time.monotonic()
    try:
        bench = Bench(folder, seed)
        while bench.faults < count:
            bench.fault()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"faults": count, "seed": seed, "seconds": round(time.monotonic() - start, 1), "kinds": dict(bench.counts)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.snapshots.faults", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(json.dumps({"seed": options.seed}), flush=True)
    print(json.dumps(run(options.count, options.seed), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
