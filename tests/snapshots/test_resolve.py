"""What an engine is told to load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from snapshots.capture import CaptureOptions, capture_checkpoint, weights_digest
from snapshots.checkpoint import inspect
from snapshots.choosing import resolve
from snapshots.fingerprint import checkpoint_fingerprint
from snapshots.manifest import Flavour
from snapshots.store import Store
from tests.snapshots.making import make_checkpoint, make_store

PORTABLE = (Flavour.PACKED, Flavour.PORTABLE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture
def store(tmp_path: Path, folder: Path) -> Store:
    store = make_store(tmp_path / "store")
    capture_checkpoint(store, "m", folder)
    return store


def test_the_snapshot_of_an_unchanged_source_fits(store: Store, folder: Path) -> None:
    found = resolve(store, "m", checkpoint_fingerprint(inspect(folder)), flavours=PORTABLE, source=folder)
    assert found.lease is not None
    assert found.reasons == ()
    found.lease.close()


def test_weights_that_were_written_to_are_a_reason(store: Store, folder: Path) -> None:
    have = checkpoint_fingerprint(inspect(folder))
    os.utime(folder / "model-00001-of-00002.safetensors", ns=(7, 7))
    found = resolve(store, "m", have, flavours=PORTABLE, source=folder)
    assert found.lease is None
    assert "model-00001-of-00002.safetensors was written to since" in found.reasons[0]


def test_a_source_that_is_gone_is_none(store: Store, folder: Path) -> None:
    have = checkpoint_fingerprint(inspect(folder))
    folder.rename(folder.parent / "elsewhere")
    found = resolve(store, "m", have, flavours=PORTABLE, source=folder)
    assert found.lease is not None
    found.lease.close()


def test_another_model_is_a_reason_and_so_is_damage(store: Store, folder: Path) -> None:
    have = checkpoint_fingerprint(inspect(folder))
    found = resolve(store, "m", replace(have, tensors="00" * 32), flavours=PORTABLE)
    assert found.lease is None
    assert "names, shapes or dtypes of the tensors differ" in found.reasons[0]
    (store.find("m").folder / "config.json").unlink()
    found = resolve(store, "m", have, flavours=PORTABLE)
    assert found.lease is None
    assert r"config.json: is missing" in found.reasons[0]


def test_an_older_one_that_fits_is_taken_and_the_newer_ones_reason_is_kept(store: Store, folder: Path) -> None:
    have = checkpoint_fingerprint(inspect(folder))
    (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace('"hidden_size": 64', '"hidden_size": 128')
    )
    capture_checkpoint(store, "m", folder, CaptureOptions(now=lambda: 9e9))
    found = resolve(store, "m", have, flavours=PORTABLE)
    assert found.lease is not None
    assert len(found.reasons) == 1
    assert "config.json differs" in found.reasons[0]
    found.lease.close()


def test_nothing_at_all_is_said_too(store: Store, folder: Path) -> None:
    have = checkpoint_fingerprint(inspect(folder))
    assert "no snapshot of other" in resolve(store, "other", have, flavours=PORTABLE).reasons[0]
    assert resolve(store, "m", have, flavours=(Flavour.PACKED,)).lease is None


def test_one_that_was_made_elsewhere_fits_only_if_its_bytes_are_known_to_be_the_same(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    """Fine-tunes of one model have the same names, shapes and configuration, and other weights."""
    other = tmp_path / "fine-tune"
    make_checkpoint(other, seed=2)
    have = checkpoint_fingerprint(inspect(other))
    assert have == checkpoint_fingerprint(inspect(folder))
    found = resolve(store, "m", have, flavours=PORTABLE, source=other)
    assert found.lease is None
    assert "holds the same weights was not compared" in found.reasons[0]
    moved = folder.rename(tmp_path / "moved")
    found = resolve(store, "m", replace(have, weights=weights_digest(moved)), flavours=PORTABLE, source=moved)
    assert found.lease is not None
    found.lease.close()
    found = resolve(store, "m", replace(have, weights=weights_digest(other)), flavours=PORTABLE, source=other)
    assert found.lease is None
