"""What a running engine's snapshot has to show before anybody may load it."""

from __future__ import annotations

from pathlib import Path

import pytest

from snapshots import Flavour, Reference, Store
from tests.rewarm_vllm.engines import EngineFailed, Engines

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]


def test_it_is_published_with_its_answer_its_engine_and_what_it_took(captured: Path) -> None:
    for flavour in (Flavour.PACKED, Flavour.SHARDED):
        manifest = Store(captured).find(Reference("smollm2", flavour=flavour)).manifest
        assert manifest is not None
        assert manifest.canary is not None
        assert len(manifest.canary.tokens) == 16
        assert "Paris" in manifest.canary.text
        assert (manifest.fingerprint.engine or "").startswith("vllm ")
        assert manifest.fingerprint.dtype == "bfloat16"
        assert manifest.fingerprint.ranks == {"tp": 1, "pp": 1, "ep": 1}
        assert manifest.measured.phases_s["capture"] > 0
        assert {"config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"} <= {
            file.name for file in manifest.files
        }


def test_one_that_answers_otherwise_than_recorded_is_not_published(
    vllm_engines: Engines, captured: Path, smollm2: Path, tmp_path: Path
) -> None:
    manifest = Store(captured).find("smollm2@packed").manifest
    assert manifest is not None
    assert manifest.canary is not None
    tokens = list(manifest.canary.tokens)
    right = {"prompt": manifest.canary.prompt, "tokens": tokens}
    wrong = {"prompt": manifest.canary.prompt, "tokens": [*tokens[:7], tokens[7] + 1, *tokens[8:]]}
    with pytest.raises(EngineFailed, match=r"CanaryFailed: token 7 of the recorded answer"):
        vllm_engines.capture(smollm2, tmp_path, "packed", "sharded", canary=wrong)
    assert Store(tmp_path).list() == []
    assert list((tmp_path / "staging").iterdir()) == []
    (made,) = vllm_engines.capture(smollm2, tmp_path, "packed", canary=right)
    assert made == manifest.snapshot_id  # the content's address: the same weights, made by other hands


def test_the_same_once_more_is_no_second_one(vllm_engines: Engines, store: Store, smollm2: Path) -> None:
    before = len(store.list())
    assert vllm_engines.capture(smollm2, store.root, "packed", "sharded") == []
    assert len(store.list()) == before


def test_a_disk_that_is_too_small_is_met_before_anything_is_written(
    vllm_engines: Engines, smollm2: Path, tmp_path: Path
) -> None:
    with pytest.raises(EngineFailed, match="StoreFull"):
        vllm_engines.capture(smollm2, tmp_path, "packed", capacity_bytes=2**20)
    assert list((tmp_path / "staging").iterdir()) == []
