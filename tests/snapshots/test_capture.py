"""A checkpoint becomes a snapshot: bit for bit, whole or not at all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from snapshots.capture import CaptureOptions, capture_checkpoint, weights_digest
from snapshots.checkpoint import inspect
from snapshots.errors import (
    Cancelled,
    CaptureRunning,
    FileChanged,
    SnapshotExists,
    SnapshotQuarantined,
    StoreFull,
    StoreReadOnly,
    WeightsCorrupt,
    WeightsMissing,
)
from snapshots.manifest import Canary, FileKind, Flavour
from snapshots.progress import Progress
from snapshots.restore import HostMemory, restore_weights
from snapshots.store import Store
from tests.snapshots.making import make_checkpoint, make_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def nothing_left(store: Store) -> bool:
    return not any((store.root / "staging").iterdir()) and not any((store.root / "trash").iterdir())


def test_every_tensor_comes_back_with_its_bits(store: Store, tmp_path: Path) -> None:
    data = make_checkpoint(tmp_path / "checkpoint")
    manifest = capture_checkpoint(store, "org/model", tmp_path / "checkpoint")
    memory = HostMemory()
    with store.lease("org/model") as lease:
        restore_weights(lease, memory)
    assert {name: bytes(view.data) for name, view in memory.tensors().items()} == data
    assert manifest.flavour is Flavour.PORTABLE
    assert nothing_left(store)


def test_the_snapshot_is_itself_a_checkpoint_with_tokenizer_and_template(store: Store, folder: Path) -> None:
    capture_checkpoint(store, "m", folder)
    with store.lease("m") as lease:
        assert inspect(lease.folder).tensors == inspect(folder).tensors
        extras = {file.name for file in lease.manifest.files if file.kind is FileKind.EXTRA}
        assert {"config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"} <= extras
        assert (lease.folder / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_stock_libraries_read_the_snapshot(store: Store, tmp_path: Path) -> None:
    safe_open = pytest.importorskip("safetensors").safe_open
    data = make_checkpoint(tmp_path / "checkpoint", tensors={"a": ("F32", (5, 3)), "b": ("I32", (1024,))})
    capture_checkpoint(store, "m", tmp_path / "checkpoint")
    with store.lease("m") as lease:
        path = lease.folder / "model-rank-0-part-0.safetensors"
        with safe_open(path, "np") as file:
            names = file.keys()  # a list: the file is no mapping
            assert {name: file.get_tensor(name).tobytes() for name in names} == data
            assert file.metadata() == {"format": "pt"}


def test_the_same_weights_have_the_same_digest_however_they_are_cut(store: Store, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "one", shards=1)
    make_checkpoint(tmp_path / "three", shards=3)
    make_checkpoint(tmp_path / "other", seed=2)
    digest = weights_digest(tmp_path / "one")
    assert digest == weights_digest(tmp_path / "three") != weights_digest(tmp_path / "other")
    assert capture_checkpoint(store, "m", tmp_path / "three").fingerprint.weights == digest


def test_a_model_in_parts(store: Store, folder: Path) -> None:
    manifest = capture_checkpoint(store, "m", folder, CaptureOptions(part_bytes=10_000))
    assert len(manifest.weight_files) > 1
    with store.lease("m") as lease:
        assert weights_digest(lease.folder) == weights_digest(folder)


def test_canary_and_revision_are_kept(store: Store, folder: Path) -> None:
    capture_checkpoint(store, "m", folder, CaptureOptions(revision="abc123", canary=Canary("Hello", (1, 2), "hi")))
    manifest = store.find("m").manifest
    assert manifest is not None
    assert manifest.canary == Canary("Hello", (1, 2), "hi")
    assert manifest.fingerprint.revision == "abc123"


def test_progress_counts_up_to_the_whole(store: Store, folder: Path) -> None:
    seen: list[Progress] = []
    manifest = capture_checkpoint(store, "m", folder, CaptureOptions(report=seen.append))
    done = [progress.done_bytes for progress in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1].total_bytes == manifest.total_bytes


def test_a_second_capture_of_the_same_says_so_and_writes_nothing(store: Store, folder: Path) -> None:
    first = capture_checkpoint(store, "m", folder)
    with pytest.raises(SnapshotExists, match=first.snapshot_id):
        capture_checkpoint(store, "m", folder)
    assert len(store.list()) == 1
    assert nothing_left(store)


def test_a_changed_checkpoint_becomes_another_version_beside_the_first(store: Store, folder: Path) -> None:
    first = capture_checkpoint(store, "m", folder, CaptureOptions(now=lambda: 1.0))
    make_checkpoint(folder, seed=2)
    second = capture_checkpoint(store, "m", folder, CaptureOptions(now=lambda: 2.0))
    assert {entry.version for entry in store.list()} == {first.version, second.version}
    assert store.find("m").version == second.version
    assert store.find(f"m@{first.version[-16:][:6]}").version == first.version


def test_two_captures_of_one_model_at_once_one_wins_and_the_other_is_told(store: Store, folder: Path) -> None:
    inside = threading.Event()
    go_on = threading.Event()

    def hold(progress: Progress) -> None:
        inside.set()
        assert go_on.wait(30)

    thread = threading.Thread(target=capture_checkpoint, args=(store, "m", folder, CaptureOptions(report=hold)))
    thread.start()
    assert inside.wait(30)
    try:
        with pytest.raises(CaptureRunning):
            capture_checkpoint(store, "m", folder)
        capture_checkpoint(store, "another", folder)  # another model's is not held up
    finally:
        go_on.set()
        thread.join(30)
    assert {entry.model for entry in store.list()} == {"m", "another"}
    assert nothing_left(store)


def test_a_cancelled_capture_leaves_nothing(store: Store, folder: Path) -> None:
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        capture_checkpoint(store, "m", folder, CaptureOptions(cancel=cancel, report=lambda progress: cancel.set()))
    assert store.list() == []
    assert nothing_left(store)


def _truncate(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    os.truncate(path, path.stat().st_size - 1)


def _lose_a_shard(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def _sparse(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    raw = path.read_bytes()
    with path.open("wb") as file:
        file.write(raw[:8192])
        file.truncate(len(raw))


def _absurd_header(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])


def _two_of_a_name(folder: Path) -> None:
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes((folder / "model-00001-of-00002.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (_truncate, WeightsCorrupt),
        (_lose_a_shard, WeightsMissing),
        (_sparse, WeightsCorrupt),
        (_absurd_header, WeightsCorrupt),
        (_two_of_a_name, WeightsCorrupt),
    ],
)
def test_a_broken_checkpoint_is_refused_by_file_and_the_store_is_as_before(
    store: Store, folder: Path, damage: Callable[[Path], None], error: type[WeightsCorrupt | WeightsMissing]
) -> None:
    damage(folder)
    with pytest.raises(error) as raised:
        capture_checkpoint(store, "m", folder)
    assert raised.value.file.parent == folder
    assert store.list() == []
    assert nothing_left(store)


def test_a_hole_is_named_by_its_offset_and_may_be_allowed(store: Store, folder: Path) -> None:
    _sparse(folder)
    with pytest.raises(WeightsCorrupt, match="sparse") as raised:
        capture_checkpoint(store, "m", folder)
    assert raised.value.offset == 8192
    capture_checkpoint(store, "m", folder, CaptureOptions(allow_holes=True))


def test_a_file_that_is_written_to_meanwhile_is_noticed(store: Store, folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"

    def write(progress: Progress) -> None:
        os.utime(path, ns=(1, 1))

    with pytest.raises(FileChanged):
        capture_checkpoint(store, "m", folder, CaptureOptions(report=write))
    assert store.list() == []
    assert nothing_left(store)


def test_a_file_that_is_cut_meanwhile_is_noticed(store: Store, folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    with pytest.raises(WeightsCorrupt):
        capture_checkpoint(store, "m", folder, CaptureOptions(report=lambda progress: os.truncate(path, 4096)))
    assert nothing_left(store)


def test_a_tokenizer_that_changes_meanwhile_is_noticed(store: Store, folder: Path) -> None:
    def write(progress: Progress) -> None:
        (folder / "tokenizer.json").write_text("{}")

    with pytest.raises(FileChanged):
        capture_checkpoint(store, "m", folder, CaptureOptions(report=write))
    assert nothing_left(store)


def test_no_room_is_said_before_anything_is_written(tmp_path: Path, folder: Path) -> None:
    store = make_store(tmp_path / "small", capacity_bytes=100_000)
    with pytest.raises(StoreFull, match="missing"):
        capture_checkpoint(store, "m", folder)
    assert nothing_left(store)


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.pwrite
    calls = iter(range(100))

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if next(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(StoreFull, match="model-rank-0"):
        capture_checkpoint(store, "m", folder)
    assert store.list() == []
    assert nothing_left(store)


def test_a_disk_that_is_full_when_space_is_reserved_leaves_nothing(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StoreFull):
        capture_checkpoint(store, "m", folder)
    assert nothing_left(store)
    monkeypatch.undo()
    capture_checkpoint(store, "m", folder)  # and no lock is left either


def test_a_store_that_can_only_be_read_is_not_written_to(store: Store, folder: Path) -> None:
    with pytest.raises(StoreReadOnly):
        capture_checkpoint(make_store(store.root, read_only=True), "m", folder)


def test_content_that_answers_wrongly_does_not_come_back_by_being_captured_again(store: Store, folder: Path) -> None:
    capture_checkpoint(store, "m", folder)
    store.quarantine("m", "canary", "said Lyon")
    with pytest.raises(SnapshotQuarantined, match="Lyon"):
        capture_checkpoint(store, "m", folder)
    store.evict("m")
    capture_checkpoint(store, "m", folder)


def test_content_that_was_damaged_on_the_disk_may_be_captured_again(store: Store, folder: Path) -> None:
    capture_checkpoint(store, "m", folder)
    store.quarantine("m", "digest", "a flipped bit")
    capture_checkpoint(store, "m", folder)
    assert [entry.quarantined for entry in store.list()] == [False, True]


def test_a_damaged_snapshot_is_replaced_by_the_same_content(store: Store, folder: Path) -> None:
    manifest = capture_checkpoint(store, "m", folder)
    (store.find("m").folder / "config.json").unlink()
    assert store.find("m").problem is not None
    assert capture_checkpoint(store, "m", folder).snapshot_id == manifest.snapshot_id
    assert store.find("m").problem is None


def test_links_in_a_hubs_cache_are_followed(store: Store, folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    cache.mkdir()
    for path in folder.iterdir():
        (cache / path.name).symlink_to(path)
    assert capture_checkpoint(store, "m", cache).fingerprint.weights == weights_digest(folder)
    with store.lease("m") as lease:
        assert not any(path.is_symlink() for path in lease.folder.iterdir())
