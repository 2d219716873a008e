"""Weights that are mapped in the process that engines are forked from: nothing is read there, and nothing is trusted
that no engine has answered with."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snapshots import SnapshotQuarantined, Store, capture_checkpoint
from tests.folders import linked_copy, passing_folder, unlinked
from tests.worker.torch.conftest import loaded, spec_of
from worker.engines.hostfile import HostFile
from worker.engines.torch.kind import KIND

torch = pytest.importorskip("torch", exc_type=ImportError)

from worker.engines.torch.ahead import Prepared, resume  # noqa: E402 -- needs torch
from worker.engines.torch.loading import take_over  # noqa: E402 -- as above

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(120)]

PROMPT = [[1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47]]


@pytest.fixture(scope="module")
def captured(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with passing_folder(tmp_path_factory, "ahead") as folder:
        store = Store(folder, floor_bytes=0)
        capture_checkpoint(store, "small", smollm2)
        yield store


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """As in a process that is forked from."""
    torch.set_num_threads(1)


def prepared(store: Store, source: Path, dtype: str = "auto") -> Prepared:
    return tried(store, source, dtype)[0]


def tried(store: Store, source: Path, dtype: str = "auto") -> tuple[Prepared, str]:
    """As the pool has it done, and why nothing was mapped."""
    spec = spec_of(source, dtype=dtype)
    host = HostFile(
        replica="", agent_pid=0, spec=spec, socket="", report="", token="", snapshots=str(store.root), need_bytes=0
    )
    return KIND.prepare(host, whole=True)


def taken_over(one: Prepared, *, compared: bool) -> tuple[Any, list[tuple[int, int]]]:
    counted: list[tuple[int, int]] = []
    assert one.model is not None
    model = take_over(
        one.model, lambda done, total: counted.append((done, total)), threading.Event(), compared=compared
    )
    return model, counted


def logits(module: Any) -> Any:
    with torch.inference_mode():
        return module(torch.tensor(PROMPT)).logits


def test_it_computes_what_the_checkpoint_does_and_writes_nothing(captured: Store, smollm2: Path) -> None:
    one = prepared(captured, smollm2)
    model, counted = taken_over(one, compared=False)
    assert counted[-1][0] == counted[-1][1] > 2**20, "every byte was compared"
    checkpoint = loaded(smollm2, dtype="bfloat16")
    assert torch.equal(logits(model.module), logits(checkpoint.module))
    assert model.mapped.written_bytes() == 0, "what forks share stays shared"


def test_bytes_that_were_compared_before_are_not_read_again(captured: Store, smollm2: Path) -> None:
    one = prepared(captured, smollm2)
    taken_over(prepared(captured, smollm2), compared=False)  # now they are in the page cache
    model, counted = taken_over(one, compared=True)
    assert len(counted) == 1, "at once, all of them"
    assert model is one.model


def test_it_is_trusted_with_the_very_weights_that_were_proved(captured: Store, smollm2: Path) -> None:
    one = prepared(captured, smollm2)
    assert one.model is not None
    assert not one.trusted(())
    assert not one.trusted(("source", "portable small@portable-0000000000000000"))
    assert one.trusted((one.model.loaded.words,))


def test_in_another_dtype_nothing_is_mapped_ahead_and_it_says_so(captured: Store, smollm2: Path) -> None:
    one, why = tried(captured, smollm2, dtype="float32")
    assert one.model is None
    assert why == f"{captured.find('small@portable').snapshot_id} is not in torch.float32, in which it computes"
    assert {parameter.device.type for parameter in one.skeleton.module.parameters()} == {"meta"}
    assert not one.trusted(("source",))


def test_a_snapshot_that_was_evicted_meanwhile_is_not_taken_over(
    captured: Store, smollm2: Path, tmp_path: Path
) -> None:
    store = Store(linked_copy(captured.root, tmp_path / "store"), floor_bytes=0)
    one = prepared(store, smollm2)
    store.evict("small@portable")  # nobody holds it: only forks would read it
    model, counted = taken_over(one, compared=True)
    assert model is None
    assert not counted


def test_damage_is_found_before_a_token_is_made_from_it(captured: Store, smollm2: Path, tmp_path: Path) -> None:
    store = Store(linked_copy(captured.root, tmp_path / "store"), floor_bytes=0)
    entry = store.find("small@portable")
    assert entry.manifest is not None
    with unlinked(entry.folder / entry.manifest.weight_files[0].name).open("r+b") as weights:
        weights.seek(-1000, os.SEEK_END)
        byte = weights.read(1)
        weights.seek(-1, os.SEEK_CUR)
        weights.write(bytes([byte[0] ^ 4]))
    one = prepared(store, smollm2)
    model, _ = taken_over(one, compared=False)
    assert model is None
    with pytest.raises(SnapshotQuarantined):
        store.find("small@portable")


def test_a_lease_is_taken_by_each_fork(captured: Store, smollm2: Path, tmp_path: Path) -> None:
    store = Store(linked_copy(captured.root, tmp_path / "store"), floor_bytes=0)
    one = prepared(store, smollm2)
    assert one.model is not None
    resume(one.model, compared=True, report=lambda done, total: None, cancel=threading.Event())
    folder = store.find("small@portable").folder
    store.evict("small@portable")
    assert torch.isfinite(logits(one.model.module)).all(), "whoever reads, reads on"
    assert not folder.exists()
