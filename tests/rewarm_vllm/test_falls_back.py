"""What is damaged, or made for something else, is never loaded: the next best is, and it is said why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from snapshots import Flavour, Store
from tests.folders import linked_copy, unlinked
from tests.rewarm_vllm.conftest import folder_of
from tests.rewarm_vllm.engines import REPOSITORY, Answers, EngineFailed, Engines

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]


def flip_a_bit(store: Store, flavour: Flavour, *, cached: bool) -> None:
    (file,) = folder_of(store, flavour).glob("*.safetensors")
    unlinked(file)
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 0x40]))
        opened.flush()
        os.fsync(opened.fileno())
        if not cached:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def quarantined(store: Store) -> list[str]:
    return [entry.version.partition("-")[0] for entry in store.list() if entry.quarantined]


@pytest.mark.parametrize("cached", [True, False])
def test_a_flipped_bit_in_packed_weights(
    cached: bool, vllm_engines: Engines, stock: Answers, store: Store, smollm2: Path
) -> None:
    """From the disk it is found while the load reads; in the page cache, beside the engine's start and before its
    first forward pass, and the model gets other weights in place. Either way no answer is wrong."""
    flip_a_bit(store, Flavour.PACKED, cached=cached)
    got = vllm_engines.answers(smollm2, "rewarm", {"store": str(store.root)})
    assert got.tiers == (["packed", "sharded"] if cached else ["sharded"])
    assert "model-rank-0-part-0.safetensors at byte" in got.reasons[0]
    assert got.logprobs == stock.logprobs
    assert quarantined(store) == ["packed"]


def test_everything_is_damaged_and_the_checkpoint_answers(
    vllm_engines: Engines, stock: Answers, store: Store, smollm2: Path
) -> None:
    for flavour in Flavour:
        flip_a_bit(store, flavour, cached=False)
    got = vllm_engines.answers(smollm2, "rewarm", {"store": str(store.root)})
    assert got.tiers == ["source"]
    assert got.logprobs == stock.logprobs
    assert sorted(quarantined(store)) == ["packed", "portable", "sharded"]


def test_another_dtype_takes_what_does_not_depend_on_it(vllm_engines: Engines, store: Store, smollm2: Path) -> None:
    got = vllm_engines.answers(smollm2, "rewarm", {"store": str(store.root)}, dtype="float32")
    assert got.tiers == ["portable"]
    assert any("the dtype: made for bfloat16, here is float32" in reason for reason in got.reasons)
    assert quarantined(store) == []


def test_another_context_makes_other_packed_weights(vllm_engines: Engines, store: Store, smollm2: Path) -> None:
    """Some models compute tables from it once, which packed weights contain."""
    got = vllm_engines.answers(smollm2, "rewarm", {"store": str(store.root)}, max_model_len=256)
    assert got.tiers == ["sharded"]
    assert any("the kernels' layout" in reason for reason in got.reasons)


def test_a_checkpoint_that_was_written_to_since(
    vllm_engines: Engines, stock: Answers, smollm2: Path, tmp_path: Path
) -> None:
    model = linked_copy(smollm2, tmp_path / "smollm2")
    unlinked(model / "model.safetensors")
    vllm_engines.capture(model, tmp_path / "store", "packed")
    os.utime(model / "model.safetensors", ns=(7, 7))
    got = vllm_engines.answers(model, "rewarm", {"store": str(tmp_path / "store")})
    assert got.tiers == ["source"]
    assert any("model.safetensors was written to since" in reason for reason in got.reasons)
    assert got.logprobs == stock.logprobs


def test_a_fine_tune_of_the_same_name_and_shape_elsewhere(
    vllm_engines: Engines, store: Store, smollm2: Path, tmp_path: Path
) -> None:
    """Nothing but its bytes tells it from the model that was captured, and its place."""
    other = linked_copy(smollm2, tmp_path / "smollm2")
    got = vllm_engines.answers(other, "rewarm", {"store": str(store.root)})
    assert got.tiers == ["source"]
    assert all("whether" in reason and "holds the same weights was not compared" in reason for reason in got.reasons)


def test_a_snapshot_that_fits_nothing_and_has_no_checkpoint_any_more(
    vllm_engines: Engines, smollm2: Path, tmp_path: Path
) -> None:
    model = linked_copy(smollm2, tmp_path / "smollm2")
    vllm_engines.capture(model, tmp_path / "store", "packed")
    folder = folder_of(Store(tmp_path / "store"), Flavour.PACKED)
    shutil.rmtree(model)
    with pytest.raises(EngineFailed, match=r"WeightsMissing: smollm2: no snapshot fits, and what smollm2@packed-"):
        vllm_engines.answers(folder, "rewarm", dtype="float32")


@pytest.mark.parametrize("wrong", [True, False])
def test_a_fork_knows_whether_its_weights_are_the_ones_that_were_mapped_ahead(wrong: bool) -> None:
    """From the disk, which had rotted: the one that forks never read it. No engine runs for this."""
    program = (
        "import torch\n"
        "from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from rewarm_vllm.forked import resume\n"
        "from rewarm_vllm.kept import Kept, hand_over, keep\n"
        "from rewarm_vllm.verification import Verification\n"
        "from snapshots import WeightsCorrupt\n"
        "def populate(options):\n"
        f"    if {wrong}: raise WeightsCorrupt(Path('file'), 'rotten')\n"
        "model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n"
        "mapped = SimpleNamespace(mostly_cached=False, populate=populate)\n"
        "lease = SimpleNamespace(retake=lambda: None, close=lambda: None)\n"
        "keep(model, Kept(lease, mapped, Verification(mapped, lambda problem: hand_over(other, model))))\n"
        "print('as made:', resume(model, compared=True))\n"
    )
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert f"as made: {not wrong}" in output
