"""Snapshots in a worker: the first load makes one behind the answers, the next ones map it and must answer the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from rewarm.messages import ReplicaSpec
from rewarm.states import FailureReason
from snapshots import Canary, Flavour, Manifest, Reference, SnapshotNotFound, Store
from tests.folders import linked_copy, passing_folder
from tests.rewarm_vllm.shallow import cut
from tests.rewarm_vllm.test_falls_back import flip_a_bit, quarantined
from tests.worker.vllm.hosting import Host, eventually, hosted, question
from worker.report import LoadedReport

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]

PACKED = Reference("smollm2", flavour=Flavour.PACKED)


@dataclass(frozen=True)
class First:
    """What the first load left."""

    store: Store
    manifest: Manifest
    text: str


def loaded_from(host: Host) -> str:
    return host.reports.of(LoadedReport)[-1].weights


def said(host: Host) -> str:
    status, answer = host.json("/v1/chat/completions", question())
    assert status == 200
    return str(answer["choices"][0]["message"]["content"])


def packed(store: Store) -> Manifest | None:
    try:
        return store.find(PACKED).manifest
    except SnapshotNotFound:
        return None


@pytest.fixture(scope="module")
def first(spec: ReplicaSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    with passing_folder(tmp_path_factory, "first") as folder:
        store = Store(folder / "store", floor_bytes=0)
        with hosted(folder / "host", spec, snapshots=str(store.root)) as host:
            host.wait_ready()
            assert loaded_from(host) == "source"
            text = said(host)  # it answers while the snapshot is made
            eventually(lambda: packed(store) is not None, 60, "the snapshot is published")
            eventually(lambda: len(host.members()) == 2, 10, "the process that captured has ended")
        manifest = packed(store)
        assert manifest is not None
        yield First(store, manifest, text)


def test_the_first_load_makes_one_with_the_engines_own_answer(first: First) -> None:
    assert first.manifest.canary is not None
    assert first.manifest.measured.memory_bytes["replica_pss"] > 0
    assert set(first.manifest.measured.phases_s) >= {"load", "capture"}


def test_the_second_load_maps_it_and_answers_the_same(first: First, spec: ReplicaSpec, tmp_path: Path) -> None:
    with hosted(tmp_path / "second", spec, snapshots=str(first.store.root)) as host:
        host.wait_ready()
        assert loaded_from(host) == f"packed {first.manifest.snapshot_id}"
        assert said(host) == first.text
        assert len(host.members()) == 2  # nothing captures


def test_one_that_answers_otherwise_goes_into_quarantine_and_the_next_attempt_is_right(
    first: First, spec: ReplicaSpec, tmp_path: Path
) -> None:
    """Every digest is right, and still it is not what was recorded: a wrong kernel, or a lie."""
    store = lying_copy(first, tmp_path / "store")
    with hosted(tmp_path / "lied-to", spec, snapshots=str(store.root)) as host:
        failed = host.wait_failed(120)
    assert failed.reason is FailureReason.VERIFICATION_FAILED
    assert "was put into quarantine: token 3 of the recorded answer" in failed.message
    with hosted(tmp_path / "again", spec, snapshots=str(store.root)) as host:
        host.wait_ready()
        assert loaded_from(host) == "source"
        assert said(host) == first.text


def test_a_damaged_one_is_replaced_before_the_first_answer(first: First, spec: ReplicaSpec, tmp_path: Path) -> None:
    """Its bytes lie in the page cache, so they are compared while the engine core starts, in vLLM's own worker."""
    store = Store(linked_copy(first.store.root, tmp_path / "store"), floor_bytes=0)
    flip_a_bit(store, Flavour.PACKED, cached=True)
    with hosted(tmp_path / "damaged", spec, snapshots=str(store.root)) as host:
        host.wait_ready()
        assert loaded_from(host) == "source"
        assert said(host) == first.text
    assert quarantined(store) == ["packed"]


def test_off_is_off(engine: Host) -> None:
    assert loaded_from(engine) == "source"
    assert len(engine.members()) == 2  # nothing captures
    assert not (engine.folder / "store").exists()


def test_what_the_first_engine_compiled_is_kept_and_the_next_one_compiles_nothing(
    spec: ReplicaSpec, smollm2: Path, tmp_path: Path
) -> None:
    """The capture runs on the serving engine's own compiled code; it holds when that gives the recorded answer."""
    shallow = replace(spec, source=str(cut(smollm2, tmp_path / "shallow")), args=("--no-enforce-eager",))
    store = Store(tmp_path / "store", floor_bytes=0)
    with hosted(tmp_path / "first", shallow, snapshots=str(store.root)) as host:
        host.wait_ready()
        assert loaded_from(host) == "source"
        text = said(host)
        eventually(lambda: len(host.members()) == 2, 240, "the process that captures has ended")
        assert [entry.version.partition("-")[0] for entry in store.list()] == ["sharded"], host.log()[-3000:]
    with hosted(tmp_path / "second", shallow, snapshots=str(store.root)) as host:
        host.wait_ready()
        assert loaded_from(host) == f"sharded {store.list()[0].snapshot_id}"
        assert f"compiled before: the cache of {store.list()[0].snapshot_id}" in host.log()
        assert said(host) == text
        assert len(host.members()) == 2  # nothing captures


def lying_copy(first: First, root: Path) -> Store:
    """The same snapshot, published with another recorded answer."""
    store = Store(root, floor_bytes=0)
    canary = first.manifest.canary
    assert canary is not None
    tokens = (*canary.tokens[:3], canary.tokens[3] + 1, *canary.tokens[4:])
    source = first.store.find(PACKED).folder
    with store.begin("smollm2", {file.name: file.size for file in first.manifest.files}) as staging:
        for file in first.manifest.files:
            out = staging.file(file.name, file.kind)
            out.write((source / file.name).read_bytes())
            out.finish()
        staging.publish(replace(first.manifest, canary=Canary(canary.prompt, tokens, canary.text)))
    return store
