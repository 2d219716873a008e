"""Snapshots that an engine makes: several at once of one model, and files that are filled out of order."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots.errors import CaptureRunning
from snapshots.manifest import FileKind
from snapshots.store import Store
from tests.snapshots.making import make_store

NAME = "model-rank-0-part-0.safetensors"
SIZE = 5 * 2**20 + 123


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def test_a_file_filled_through_its_memory_is_digested_as_one_that_was_written(store: Store) -> None:
    data = bytes(range(256)) * (SIZE // 256 + 1)
    with store.begin("m", {NAME: SIZE, "written": SIZE}) as staging:
        memory = staging.mapped(NAME)
        memory[SIZE // 2 :] = data[SIZE // 2 : SIZE]  # an engine loads layers in its own order
        memory[: SIZE // 2] = data[: SIZE // 2]
        filled = staging.digested(NAME, FileKind.WEIGHTS, memory)
        out = staging.file("written", FileKind.WEIGHTS)
        out.write(data[:SIZE])
        written = out.finish()
        assert (filled.size, filled.blake3, filled.chunks) == (written.size, written.blake3, written.chunks)
        assert (staging.folder / NAME).read_bytes() == data[:SIZE]
        assert (staging.folder / NAME).stat().st_mode & 0o777 == 0o444


def test_one_process_may_make_two_at_once_and_another_none_meanwhile(store: Store) -> None:
    with store.begin("m", {NAME: 10}) as sharded:
        with store.begin("m", {NAME: 10}, beside=sharded):
            with pytest.raises(CaptureRunning):
                store.begin("m", {NAME: 10})
        with pytest.raises(CaptureRunning):
            store.begin("m", {NAME: 10})
    store.begin("m", {NAME: 10}).abort()
