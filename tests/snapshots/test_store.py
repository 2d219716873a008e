"""The store: versions side by side, leases that die with their process, room made without hurting anybody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from snapshots.capture import CaptureOptions, capture_checkpoint
from snapshots.errors import (
    CheckpointError,
    FingerprintMismatch,
    SnapshotNotFound,
    SnapshotPinned,
    SnapshotQuarantined,
    StoreFull,
    StoreInvalid,
    StoreReadOnly,
)
from snapshots.manifest import FileKind, Fingerprint
from snapshots.progress import Progress
from snapshots.restore import HostMemory, RestoreOptions, restore_weights
from snapshots.store import Store
from tests.snapshots.making import make_checkpoint, make_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


@pytest.fixture
def add(store: Store, tmp_path: Path) -> Callable[..., str]:
    def add(model: str, seed: int = 1, at: float = 1.0) -> str:
        make_checkpoint(tmp_path / f"{model}-{seed}", seed=seed)
        return capture_checkpoint(
            store, model, tmp_path / f"{model}-{seed}", CaptureOptions(now=lambda: at)
        ).snapshot_id

    return add


def trash(store: Store) -> list[Path]:
    return list((store.root / "trash").iterdir())


# --- opening ---


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(StoreInvalid, match=r"holiday\.jpg"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_store_of_another_layout_is_refused(store: Store) -> None:
    (store.root / "rewarm-store.json").write_text('{"format": "rewarm-store", "version": 9}')
    with pytest.raises(StoreInvalid, match="another version"):
        Store(store.root)


def test_a_store_that_was_half_made_is_made_whole(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "lock").touch()
    assert make_store(tmp_path / "store").list() == []


def test_an_unknown_snapshot(store: Store) -> None:
    with pytest.raises(SnapshotNotFound, match="nothing"):
        store.lease("nothing")


def test_names_with_slashes_and_colons_are_kept_apart(add: Callable[..., str], store: Store) -> None:
    ids = {add("a"), capture_checkpoint(store, "org/a:1", store.root.parent / "a-1").snapshot_id}
    assert {entry.snapshot_id for entry in store.list()} == ids


# --- reading ---


def test_a_store_that_can_only_be_read_serves_and_refuses_to_change(add: Callable[..., str], store: Store) -> None:
    snapshot = add("m")
    reading = make_store(store.root, read_only=True)
    with reading.lease("m") as lease:
        restore_weights(lease, HostMemory())
    for change in (
        lambda: reading.evict(snapshot),
        lambda: reading.set_state(snapshot, pinned=True),
        lambda: reading.quarantine(snapshot, "operator", ""),
        reading.collect,
    ):
        with pytest.raises(StoreReadOnly):
            change()
    assert [entry.snapshot_id for entry in reading.list()] == [snapshot]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_store_on_a_file_system_mounted_read_only(add: Callable[..., str], store: Store, tmp_path: Path) -> None:
    add("m")
    there = tmp_path / "there"
    there.mkdir()
    if subprocess.run(["mount", "-o", "bind,ro", store.root, there], check=False, capture_output=True).returncode:
        pytest.skip("this container may not mount")
    try:
        reading = Store(there)
        assert reading.read_only
        with reading.lease("m") as lease:
            restore_weights(lease, HostMemory())
        with pytest.raises(StoreReadOnly):
            reading.evict("m")
    finally:
        subprocess.run(["umount", there], check=True)


def test_hits_and_misses_are_counted_and_the_last_use_noted(add: Callable[..., str], tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", now=lambda: 1234.0)
    add("m")
    with store.lease("m"):
        pass
    with pytest.raises(SnapshotNotFound):
        store.lease("other")
    hits = store.usage().hits
    assert (hits.hits, hits.misses, hits.rate) == (1, 1, 0.5)
    assert store.find("m").last_used == 1234.0


def test_a_reader_with_something_else_is_told_why(add: Callable[..., str], store: Store) -> None:
    add("m")
    manifest = store.find("m").manifest
    assert manifest is not None
    store.lease("m", fingerprint=manifest.fingerprint).close()
    with pytest.raises(FingerprintMismatch, match=r"config\.json differs") as error:
        store.lease("m", fingerprint=Fingerprint(tensors=manifest.fingerprint.tensors, config="00" * 32))
    assert len(error.value.reasons) == 1


def test_a_snapshot_in_the_folder_of_another_is_refused(add: Callable[..., str], store: Store) -> None:
    add("m")
    entry = store.find("m")
    wrong = store.root / "snapshots" / "other" / entry.version
    wrong.parent.mkdir()
    entry.folder.rename(wrong)
    with pytest.raises(CheckpointError, match="is the folder of other"):
        store.lease("other")


# --- leases ---


def test_what_is_evicted_while_it_is_read_is_out_of_sight_and_read_to_the_end(
    add: Callable[..., str], store: Store
) -> None:
    snapshot = add("m")
    memory, expected = HostMemory(), HostMemory()
    with store.lease("m") as lease:
        restore_weights(lease, expected)
        assert store.evict(snapshot) is False
        assert store.list() == []
        assert lease.evicted
        with pytest.raises(SnapshotNotFound):
            store.lease("m")
        restore_weights(lease, memory)
        assert bytes(memory.file(0)) == bytes(expected.file(0))
        assert (lease.path / "config.json").is_file()
        assert len(trash(store)) == 1
    assert trash(store) == []  # the last reader takes it away


def test_the_lease_of_a_killed_process_is_gone(add: Callable[..., str], store: Store) -> None:
    add("m")
    ready, child_says = os.pipe()
    child = os.fork()
    if child == 0:
        lease = store.lease("m")
        os.write(child_says, b"x")
        signal.pause()
        lease.close()
        os._exit(1)
    assert os.read(ready, 1) == b"x"
    try:
        assert [entry.leased for entry in store.list()] == [True]
        assert store.evict("m") is False
        assert store.collect().in_use == 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert store.collect().removed == 1
    assert trash(store) == []


def test_a_forked_child_does_not_keep_its_parents_lease(add: Callable[..., str], store: Store) -> None:
    add("m")
    lease = store.lease("m")
    ready, parent_says = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(parent_says)
        os.read(ready, 1)  # until the parent closes its end
        os._exit(0)
    try:
        lease.close()
        assert store.evict("m") is True
    finally:
        os.close(parent_says)
        os.waitpid(child, 0)


def test_a_forked_child_that_closes_its_copy_does_not_end_its_parents_lease(
    add: Callable[..., str], store: Store
) -> None:
    add("m")
    with store.lease("m") as lease:
        child = os.fork()
        if child == 0:
            lease.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert [entry.leased for entry in store.list()] == [True]


# --- room ---


def test_who_only_maps_it_for_others_does_not_keep_it_and_those_take_their_own(
    add: Callable[..., str], store: Store
) -> None:
    """As a process of the pool, whose forks are the engines that read."""
    add("m")
    lease = store.lease("m")
    lease.let_go()
    assert [entry.leased for entry in store.list()] == [False]
    child = os.fork()
    if child == 0:
        lease.retake()
        os._exit(0 if [entry.leased for entry in store.list()] == [True] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.evict("m") is True
    with pytest.raises(SnapshotNotFound, match="since it was mapped"):
        lease.retake()


def test_room_is_made_by_priority_and_last_use_and_never_from_pinned_or_read(
    add: Callable[..., str], tmp_path: Path
) -> None:
    size = _size_of_one(add, tmp_path)
    clock = iter(range(10, 1000))
    store = make_store(tmp_path / "store", capacity_bytes=int(4.5 * size) + 2**20, now=lambda: float(next(clock)))
    kept = {add("pinned"), add("read"), add("important")}
    add("old")
    store.set_state("pinned", pinned=True)
    store.set_state("important", priority=5)
    make_checkpoint(tmp_path / "new", seed=9)
    with store.lease("read"):
        kept.add(capture_checkpoint(store, "new", tmp_path / "new").snapshot_id)
        assert {entry.snapshot_id for entry in store.list()} == kept
        store.set_state("new", priority=9)
        make_checkpoint(tmp_path / "newer", seed=10)
        kept.add(capture_checkpoint(store, "newer", tmp_path / "newer").snapshot_id)
        assert {entry.model for entry in store.list()} == {"pinned", "read", "new", "newer"}


def test_when_nothing_may_go_it_is_refused_and_nothing_went(add: Callable[..., str], tmp_path: Path) -> None:
    size = _size_of_one(add, tmp_path)
    store = make_store(tmp_path / "store", capacity_bytes=int(2.5 * size) + 2**20)
    add("free")
    add("pinned")
    store.set_state("pinned", pinned=True)
    make_checkpoint(tmp_path / "large", seed=9, rows=4096)
    with pytest.raises(StoreFull, match="missing"):
        capture_checkpoint(store, "large", tmp_path / "large")
    assert {entry.model for entry in store.list()} == {"free", "pinned"}


def _size_of_one(add: Callable[..., str], tmp_path: Path) -> int:
    store = make_store(tmp_path / "measure")
    make_checkpoint(tmp_path / "one")
    capture_checkpoint(store, "one", tmp_path / "one")
    return store.list()[0].size_bytes


def test_the_disks_floor_is_kept(add: Callable[..., str], tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", floor_bytes=2**60)
    make_checkpoint(tmp_path / "m")
    with pytest.raises(StoreFull):
        capture_checkpoint(store, "m", tmp_path / "m")


def test_what_is_pinned_is_not_evicted_by_hand_either(add: Callable[..., str], store: Store) -> None:
    add("m")
    store.set_state("m", pinned=True)
    with pytest.raises(SnapshotPinned):
        store.evict("m")
    store.set_state("m", pinned=False)
    assert store.evict("m") is True


# --- quarantine ---


def test_what_is_quarantined_is_not_used_and_says_why(add: Callable[..., str], store: Store) -> None:
    add("m", seed=1, at=1.0)
    bad = add("m", seed=2, at=2.0)
    with store.lease(bad) as lease:
        store.quarantine(bad, "canary", "said Lyon")
        restore_weights(lease, HostMemory())  # who reads already is not disturbed
    with pytest.raises(SnapshotQuarantined, match="Lyon"):
        store.lease(bad)
    with store.lease("m") as lease:
        assert lease.snapshot_id != bad  # the one before is good
    (entry,) = [entry for entry in store.list() if entry.quarantined]
    assert entry.summary()["quarantine"] == {"kind": "canary", "reason": "said Lyon"}
    store.collect(quarantined=True)
    assert [entry.quarantined for entry in store.list()] == [False]


# --- collecting ---


def test_what_a_killed_capture_left_is_collected_and_a_live_one_is_not(
    add: Callable[..., str], store: Store, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "checkpoint")
    ready, child_says = os.pipe()
    child = os.fork()
    if child == 0:

        def stay(progress: Progress) -> None:
            os.write(child_says, b"x")
            signal.pause()

        capture_checkpoint(store, "m", tmp_path / "checkpoint", CaptureOptions(report=stay))
        os._exit(1)
    assert os.read(ready, 1) == b"x"
    try:
        assert store.collect().removed == 0
        assert len(list((store.root / "staging").iterdir())) == 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    collected = store.collect()
    assert collected.removed == 1
    assert collected.freed_bytes > 100_000
    assert list((store.root / "staging").iterdir()) == []
    capture_checkpoint(store, "m", tmp_path / "checkpoint")


def test_collecting_leaves_no_state_and_no_empty_folder(add: Callable[..., str], store: Store) -> None:
    add("m")
    store.set_state("m", priority=3)
    with store.lease("m"):
        pass
    (store.root / "state" / "m" / ".x.json.77").touch()
    (store.root / ".hits.json.77").touch()
    store.evict("m")
    store.collect()
    left = {path.name for path in store.root.rglob("*")}
    assert left == {"rewarm-store.json", "lock", "hits.json", *(["snapshots", "staging", "trash"])} | {
        "quarantine",
        "state",
        "fetch",
    }


# --- all at once ---


def test_four_readers_finish_while_everything_else_happens(add: Callable[..., str], store: Store) -> None:
    """Evicted, replaced by a new version and collected while four read: all four end with the right bytes."""
    snapshot = add("m", seed=1, at=1.0)
    expected = HostMemory()
    with store.lease(snapshot) as lease:
        restore_weights(lease, expected, RestoreOptions(kinds=frozenset(FileKind)))
    started, go_on = threading.Barrier(5), threading.Event()
    results: list[bytes] = []

    def read() -> None:
        memory = HostMemory()

        def pause(progress: Progress) -> None:
            if progress.done_bytes == progress.total_bytes:
                return
            if not go_on.is_set():
                started.wait(30)
                assert go_on.wait(30)

        options = RestoreOptions(kinds=frozenset(FileKind), report=pause, threads=1)
        with store.lease(snapshot) as lease:
            restore_weights(lease, memory, options)
        results.append(bytes(memory.file(0)))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    started.wait(30)
    add("m", seed=2, at=2.0)
    store.evict(snapshot)
    store.collect()
    assert len(trash(store)) == 1
    go_on.set()
    for reader in readers:
        reader.join(30)
    assert results == [bytes(expected.file(0))] * 4
    store.collect()
    assert trash(store) == []
    assert [entry.created for entry in store.list()] == [2.0]


def test_importing_the_room_brings_no_engine_and_no_http_client() -> None:
    code = (
        "import sys, snapshots, snapshots.store, snapshots.restore, snapshots.capture;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'aiohttp', 'obstore', 'redis', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
