"""Engines that compile: what torch made for one is kept with the weights, and the next one compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshots import ENGINE_CACHE_NAME, Store
from tests.folders import linked_copy, passing_folder
from tests.rewarm_vllm.engines import EngineFailed, Engines
from tests.rewarm_vllm.shallow import cut

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

COMPILED: dict[str, Any] = {"enforce_eager": False}


@pytest.fixture(scope="module")
def shallow(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("vllm", exc_type=ImportError)
    with passing_folder(tmp_path_factory, "shallow") as folder:
        yield cut(smollm2, folder / "shallow")


@pytest.fixture(scope="module")
def compiled(vllm_engines: Engines, shallow: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store's folder with weights and what was compiled for them."""
    with passing_folder(tmp_path_factory, "compiled") as root:
        vllm_engines.capture(shallow, root, "sharded", name="shallow", **COMPILED)
        yield root


@pytest.fixture
def store(compiled: Path, tmp_path: Path) -> Store:
    return Store(linked_copy(compiled, tmp_path / "store"), floor_bytes=0)


def test_the_next_engine_compiles_nothing_and_answers_the_same(
    vllm_engines: Engines, shallow: Path, store: Store
) -> None:
    stock = vllm_engines.answers(shallow, **COMPILED)
    got = vllm_engines.answers(shallow, "rewarm", {"store": str(store.root)}, **COMPILED)
    assert got.tiers == ["sharded"]
    assert got.graphs["hit"] > 0
    assert got.graphs["miss"] == 0
    assert got.tokens == stock.tokens
    assert got.logprobs == stock.logprobs


def test_weights_of_another_store_are_taken_and_its_code_is_not(
    vllm_engines: Engines, shallow: Path, store: Store
) -> None:
    """A store that was copied without its key is another store."""
    (store.root / "engine-cache.key").unlink()
    got = vllm_engines.answers(shallow, "rewarm", {"store": str(store.root)}, **COMPILED)
    assert got.tiers == ["sharded"]
    assert got.graphs["hit"] == 0
    assert any("its compile cache was not made in this store" in reason for reason in got.reasons)


def test_packed_weights_do_not_go_into_a_compiled_model(vllm_engines: Engines, shallow: Path, tmp_path: Path) -> None:
    """Inductor does not lower them: an engine that took them would not start."""
    with pytest.raises(EngineFailed, match="CaptureRefused: packed weights do not go into a compiled model"):
        vllm_engines.capture(shallow, tmp_path, "packed", name="shallow", **COMPILED)
    vllm_engines.capture(shallow, tmp_path, "packed", name="shallow")  # by an eager engine
    extra = {"store": str(tmp_path), "caches": False}
    got = vllm_engines.answers(shallow, "rewarm", extra, **COMPILED)
    assert got.tiers == ["source"]
    assert "packed weights do not go into a compiled model" in got.reasons


def test_one_with_a_cache_takes_the_place_of_the_one_without(
    vllm_engines: Engines, shallow: Path, tmp_path: Path
) -> None:
    (plain,) = vllm_engines.capture(shallow, tmp_path, "sharded", name="shallow")
    (made,) = vllm_engines.capture(shallow, tmp_path, "sharded", name="shallow", **COMPILED)
    store = Store(tmp_path)
    assert plain != made
    assert [entry.snapshot_id for entry in store.list()] == [made]
    manifest = store.find(made).manifest
    assert manifest is not None
    assert ENGINE_CACHE_NAME in {file.name for file in manifest.files}
