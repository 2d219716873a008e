"""A compile cache is code: it counts only in the store where it was captured, for what made it, and whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from snapshots import (
    ENGINE_CACHE_NAME,
    EngineCacheRefused,
    FileKind,
    Flavour,
    Store,
    StoreFull,
    capture_checkpoint,
    has_engine_cache,
    pack_engine_cache,
    unpack_engine_cache,
)
from snapshots.engine_cache import KEY_FILE
from snapshots.errors import CheckpointError
from tests.snapshots.making import make_checkpoint, make_store

MADE = {"vllm": "0.32.0", "torch": "2.13.0", "device": "cpu x86_64"}


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    folder = tmp_path / "compiled"
    (folder / "fxgraph" / "ab").mkdir(parents=True)
    (folder / "fxgraph" / "ab" / "cabc").write_bytes(b"a pickle, to somebody")
    (folder / "kernel.so").write_bytes(bytes(range(256)) * 50)
    (folder / "locks").mkdir()
    (folder / "locks" / "x.lock").touch()
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def publish(store: Store, tmp_path: Path, data: bytes) -> None:
    """A snapshot with this as its cache, reserved after the weights were written, as a capture does."""
    make_checkpoint(tmp_path / "checkpoint")
    made = capture_checkpoint(store, "plain", tmp_path / "checkpoint")
    source = store.find("plain").folder
    with store.begin("m", {file.name: file.size for file in made.files}) as staging:
        files = []
        for file in made.files:
            out = staging.file(file.name, file.kind)
            out.write((source / file.name).read_bytes())
            files.append(out.finish())
        store.extend(staging, {ENGINE_CACHE_NAME: len(data)})
        out = staging.file(ENGINE_CACHE_NAME, FileKind.CACHE)
        out.write(data)
        files.append(out.finish())
        staging.publish(replace(made, model="m", flavour=Flavour.SHARDED, files=tuple(files)))


def unpacked(store: Store, folder: Path, made: dict[str, str] | None = None) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    with store.lease("m") as lease:
        assert has_engine_cache(lease)
        unpack_engine_cache(lease, MADE if made is None else made, store, folder)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_comes_back_as_it_was_for_its_owner_only(store: Store, compiled: Path, tmp_path: Path) -> None:
    publish(store, tmp_path, pack_engine_cache(compiled, MADE, store))
    found = unpacked(store, tmp_path / "out")
    assert found == {"fxgraph/ab/cabc": b"a pickle, to somebody", "kernel.so": bytes(range(256)) * 50}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert (store.root / KEY_FILE).stat().st_mode & 0o777 == 0o600
    store.collect()
    assert unpacked(store, tmp_path / "again") == found  # a collection takes no key away


@pytest.mark.parametrize("field", MADE)
def test_another_engine_or_machine_is_refused_by_name(field: str, store: Store, compiled: Path, tmp_path: Path) -> None:
    publish(store, tmp_path, pack_engine_cache(compiled, MADE, store))
    with pytest.raises(EngineCacheRefused, match=f"{field} was .*, is other"):
        unpacked(store, tmp_path / "out", {**MADE, field: "other"})
    assert list((tmp_path / "out").iterdir()) == []


def test_a_snapshot_from_another_store_brings_no_code(store: Store, compiled: Path, tmp_path: Path) -> None:
    """Whole, every digest right, and made by somebody else: its weights are welcome, its cache is not."""
    foreign = make_store(tmp_path / "foreign")
    publish(foreign, tmp_path, pack_engine_cache(compiled, MADE, foreign))
    shutil.copytree(foreign.root / "snapshots" / "m", store.root / "snapshots" / "m")
    with pytest.raises(EngineCacheRefused, match="was not made in this store"):
        unpacked(store, tmp_path / "out")
    pack_engine_cache(compiled, MADE, store)  # this store has a key now: another one
    with pytest.raises(EngineCacheRefused, match="was not made in this store"):
        unpacked(store, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_was_added_after_the_seal_is_refused(store: Store, compiled: Path, tmp_path: Path) -> None:
    data = pack_engine_cache(compiled, MADE, store)
    at = data.index(b"a pickle")
    publish(store, tmp_path, data[:at] + b"A" + data[at + 1 :])
    with pytest.raises(EngineCacheRefused, match="was not made in this store"):
        unpacked(store, tmp_path / "out")


def test_a_flipped_bit_is_named_by_file(store: Store, compiled: Path, tmp_path: Path) -> None:
    publish(store, tmp_path, pack_engine_cache(compiled, MADE, store))
    path = store.find("m").folder / ENGINE_CACHE_NAME
    path.chmod(0o644)
    raw = bytearray(path.read_bytes())
    raw[500] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=ENGINE_CACHE_NAME):
        unpacked(store, tmp_path / "out")


def test_a_key_that_others_can_read_seals_nothing(store: Store, compiled: Path, tmp_path: Path) -> None:
    publish(store, tmp_path, pack_engine_cache(compiled, MADE, store))
    (store.root / KEY_FILE).chmod(0o644)
    with pytest.raises(EngineCacheRefused, match="was not made in this store"):
        unpacked(store, tmp_path / "out")
    with pytest.raises(EngineCacheRefused, match=KEY_FILE):
        pack_engine_cache(compiled, MADE, store)


def test_links_and_locks_are_left_out_and_nothing_is_no_cache(store: Store, compiled: Path, tmp_path: Path) -> None:
    (compiled / "link").symlink_to("/etc/passwd")
    assert b"link" not in pack_engine_cache(compiled, MADE, store)
    assert b"x.lock" not in pack_engine_cache(compiled, MADE, store)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineCacheRefused, match="holds nothing"):
        pack_engine_cache(tmp_path / "empty", MADE, store)


def test_two_processes_that_need_a_key_at_once_get_the_same(store: Store, compiled: Path) -> None:
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            pack_engine_cache(compiled, MADE, store)
            os._exit(0)
        children.append(child)
    key = None
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
        key = key or (store.root / KEY_FILE).read_bytes()
    assert (store.root / KEY_FILE).read_bytes() == key
    assert [path.name for path in store.root.glob(".*")] == []


def test_a_cache_that_finds_no_room_leaves_the_snapshot_in_the_making_as_it_was(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", capacity_bytes=4 * 2**20)
    with store.begin("m", {"a": 10}) as staging:
        with pytest.raises(StoreFull):
            store.extend(staging, {ENGINE_CACHE_NAME: 8 * 2**20})
        assert [path.name for path in staging.folder.iterdir()] == ["a"]
        with pytest.raises(ValueError, match="twice"):
            store.extend(staging, {"a": 1})


def test_a_capture_of_a_snapshots_folder_takes_no_cache_along(store: Store, compiled: Path, tmp_path: Path) -> None:
    publish(store, tmp_path, pack_engine_cache(compiled, MADE, store))
    with store.lease("m") as lease:
        made = capture_checkpoint(store, "copy", lease.folder)
    assert ENGINE_CACHE_NAME not in {file.name for file in made.files}
