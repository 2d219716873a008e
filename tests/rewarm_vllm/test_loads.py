"""The same answers, whatever the weights come from: this is what makes a snapshot one of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import Flavour, Store
from tests.rewarm_vllm.conftest import folder_of
from tests.rewarm_vllm.engines import Answers, Engines

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]

ORDER = ("packed", "sharded", "portable", "source")


@pytest.mark.parametrize("tier", ORDER)
def test_every_tier_answers_as_stock_vllm_does(
    tier: str, vllm_engines: Engines, stock: Answers, store: Store, smollm2: Path
) -> None:
    """Tokens and log-probabilities, bit for bit. The better tiers are taken away to get at the next."""
    for better in ORDER[: ORDER.index(tier)]:
        store.evict(f"smollm2@{better}")
    got = vllm_engines.answers(smollm2, "rewarm", {"store": str(store.root)})
    assert got.tiers == [tier]
    assert got.tokens == stock.tokens
    assert got.logprobs == stock.logprobs


@pytest.mark.parametrize("flavour", [Flavour.PACKED, Flavour.SHARDED])
def test_a_snapshots_folder_is_a_model(flavour: Flavour, vllm_engines: Engines, stock: Answers, store: Store) -> None:
    """With tokenizer and configuration in it: ``--model`` may name it, and nothing else is needed."""
    got = vllm_engines.answers(folder_of(store, flavour), "rewarm")
    assert got.tiers == [flavour.value]
    assert got.logprobs == stock.logprobs


def test_stock_vllm_reads_sharded_snapshots_without_us(vllm_engines: Engines, stock: Answers, store: Store) -> None:
    got = vllm_engines.answers(folder_of(store, Flavour.SHARDED), "sharded_state")
    assert got.tiers == []  # our loader had no part in it
    assert got.logprobs == stock.logprobs


def test_the_bytes_are_counted_to_their_end(vllm_engines: Engines, store: Store, smollm2: Path) -> None:
    store.evict("smollm2@packed")
    got = vllm_engines.answers(smollm2, "rewarm", {"store": str(store.root)})
    done = [count for count, _ in got.bytes]
    manifest = store.find("smollm2@sharded").manifest
    assert manifest is not None
    assert done == sorted(done)
    assert len(set(done)) > 10  # chunk by chunk
    assert got.bytes[-1] == (manifest.weight_bytes, manifest.weight_bytes)


def test_float32_packs_too(vllm_engines: Engines, smollm2: Path, tmp_path: Path) -> None:
    vllm_engines.capture(smollm2, tmp_path, "packed", dtype="float32")
    stock = vllm_engines.answers(smollm2, dtype="float32")
    got = vllm_engines.answers(smollm2, "rewarm", {"store": str(tmp_path)}, dtype="float32")
    assert got.tiers == ["packed"]
    assert got.logprobs == stock.logprobs
