"""Quantised checkpoints keep their bits in every flavour, and the engine computes the same from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshots import HostMemory, Store, capture_checkpoint, restore_weights
from tests.folders import passing_folder
from tests.rewarm_vllm.engines import Answers, EngineFailed, Engines
from tests.rewarm_vllm.quantised import METHODS, Method, quantise

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

HAS_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text()
"""vLLM's build for AVX2 has no AWQ and GPTQ kernels; its FP8 kernels want AMX."""


@pytest.fixture(scope="module")
def models(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Method, Path]]:
    pytest.importorskip("vllm", exc_type=ImportError)
    with passing_folder(tmp_path_factory, "quantised") as folder:
        yield {method: quantise(smollm2, folder / method, method) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_a_portable_snapshot_holds_the_checkpoints_bits(
    method: Method, models: dict[Method, Path], tmp_path: Path
) -> None:
    from safetensors import safe_open

    store = Store(tmp_path, floor_bytes=0)
    capture_checkpoint(store, method, models[method])
    memory = HostMemory()
    with store.lease(method) as lease:
        restore_weights(lease, memory)
    restored = memory.tensors()
    with safe_open(models[method] / "model.safetensors", "pt") as file:
        assert set(file.keys()) == restored.keys()
        for name, view in restored.items():
            kept = file.get_slice(name)
            assert (view.tensor.dtype, list(view.tensor.shape)) == (kept.get_dtype(), kept.get_shape())
            assert bytes(view.data) == _bytes(file.get_tensor(name))


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_every_tier_of_a_quantised_model_answers_as_stock_vllm_does(
    method: Method, models: dict[Method, Path], vllm_engines: Engines, tmp_path: Path
) -> None:
    """Tokens and log-probabilities. In *packed* the quantised layers lie as they are, and vLLM prepares them."""
    store = Store(tmp_path, floor_bytes=0)
    if not HAS_AVX512:
        _refused_as_by_stock_vllm(method, models, vllm_engines, store)
        return
    stock = vllm_engines.answers(models[method])
    vllm_engines.capture(models[method], store.root, "packed", "sharded", name=method)
    capture_checkpoint(store, method, models[method])
    for tier in ("packed", "sharded", "portable"):
        got = _answers(vllm_engines, models[method], store)
        assert got.tiers == [tier], got.reasons
        assert got.tokens == stock.tokens
        assert got.logprobs == stock.logprobs
        store.evict(f"{method}@{tier}")


def test_fp8_loads_here_exactly_where_stock_vllm_loads_it(
    models: dict[Method, Path], vllm_engines: Engines, tmp_path: Path
) -> None:
    store = Store(tmp_path, floor_bytes=0)
    try:
        stock = vllm_engines.answers(models["fp8"])
    except EngineFailed:
        _refused_as_by_stock_vllm("fp8", models, vllm_engines, store)
        return
    capture_checkpoint(store, "fp8", models["fp8"])
    got = _answers(vllm_engines, models["fp8"], store)
    assert got.tiers == ["portable"]
    assert got.logprobs == stock.logprobs


def _refused_as_by_stock_vllm(method: Method, models: dict[Method, Path], engines: Engines, store: Store) -> None:
    with pytest.raises(EngineFailed):
        engines.answers(models[method])
    capture_checkpoint(store, method, models[method])
    with pytest.raises(EngineFailed):
        _answers(engines, models[method], store)


def _answers(engines: Engines, model: Path, store: Store) -> Answers:
    return engines.answers(model, "rewarm", {"store": str(store.root)})


def _bytes(tensor: Any) -> bytes:
    from rewarm_vllm.views import bytes_of

    return bytes(bytes_of(tensor))
