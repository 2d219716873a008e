"""Whether a load would map a snapshot is known before anything is built, and if it would not, in words for a person."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from rewarm_vllm import why_not_mapped
from snapshots import Fingerprint, Flavour, Store, capture_checkpoint
from tests.snapshots.making import make_checkpoint, make_store

HERE = {
    "engine": "vllm 1",
    "torch": "2",
    "dtype": "bfloat16",
    "kernels": "onednn",
    "ranks": {"tp": 1},
    "device": "avx2",
}


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(model: Fingerprint, vllm_config: object, model_config: object) -> Fingerprint:
        return replace(model, **HERE)

    # In the place of the module that asks torch and vLLM.
    monkeypatch.setitem(sys.modules, "rewarm_vllm.fingerprint", SimpleNamespace(engine_fingerprint=here))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path / "small")
    return tmp_path / "small"


def packed(root: Path, checkpoint: Path, **made: object) -> Store:
    """With one packed snapshot of ``checkpoint``, made here but for what ``made`` says."""
    portable = make_store(root.with_name("portable"))
    capture_checkpoint(portable, "small", checkpoint)
    entry, store = portable.find("small@portable"), make_store(root)
    manifest = entry.manifest
    assert manifest is not None
    with store.begin("small", {file.name: file.size for file in manifest.files}) as staging:
        for file in manifest.files:
            out = staging.file(file.name, file.kind)
            out.write((entry.folder / file.name).read_bytes())
            out.finish()
        fingerprint = replace(manifest.fingerprint, **(HERE | made))
        staging.publish(replace(manifest, flavour=Flavour.PACKED, fingerprint=fingerprint))
    return store


def load(checkpoint: Path, **options: object) -> Any:
    """A load's configuration, as far as it is looked at."""
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(checkpoint)),
        load_config=SimpleNamespace(model_loader_extra_config=options),
    )


def test_one_that_fits_is_no_reason_and_is_held_no_longer(checkpoint: Path, tmp_path: Path) -> None:
    store = packed(tmp_path / "store", checkpoint)
    assert why_not_mapped(load(checkpoint, store=str(store.root))) == ""
    assert store.evict("small@packed"), "nobody reads it"


def test_one_of_another_cpu_is_named_with_both(checkpoint: Path, tmp_path: Path) -> None:
    store = packed(tmp_path / "store", checkpoint, device="avx512f")
    (entry,) = store.list()
    why = why_not_mapped(load(checkpoint, store=str(store.root)))
    assert why == f"{entry.snapshot_id}: the device: made for avx512f, here is avx2"


def test_without_a_snapshot_without_a_store_and_with_snapshots_off(checkpoint: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert why_not_mapped(load(checkpoint, store=str(root))) == "no store of snapshots"
    make_store(root)
    assert why_not_mapped(load(checkpoint, store=str(root))) == f"no snapshot of small in {root}"
    assert why_not_mapped(load(checkpoint, snapshots=False)) == "snapshots are off for this model"
