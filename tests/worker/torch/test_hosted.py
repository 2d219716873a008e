"""The torch engine as a host: how it starts, what it maps, how it ends. Nothing of it stays behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from rewarm.messages import ReplicaSpec
from rewarm.states import LOAD_PHASES, FailureReason, ReplicaState
from snapshots import Canary, Flavour, Manifest, Reference, SnapshotNotFound, Store
from tests.folders import linked_copy, passing_folder, unlinked
from tests.worker.torch.conftest import Direct, spec_of
from tests.worker.vllm.hosting import Host, events, eventually, hosted, question, text_of
from worker.report import BytesReport, FailedReport, LoadedReport, PhaseReport

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]

PORTABLE = Reference("small", flavour=Flavour.PORTABLE)
ASK = "What is the capital of France?"


def portable(store: Store) -> Manifest | None:
    try:
        return store.find(PORTABLE).manifest
    except SnapshotNotFound:
        return None


def loaded_from(host: Host) -> str:
    return host.reports.of(LoadedReport)[-1].weights


def said(host: Host) -> list[int]:
    status, answer = host.json("/v1/chat/completions", question(ASK, model="small", return_token_ids=True))
    assert status == 200, answer
    tokens: list[int] = answer["choices"][0]["token_ids"]
    return tokens


@dataclass(frozen=True)
class First:
    """What the first load left."""

    store: Store
    manifest: Manifest
    tokens: list[int]
    answer: str
    phases: list[ReplicaState]
    counted: list[BytesReport]


@pytest.fixture(scope="module")
def own_dtype(spec: ReplicaSpec) -> ReplicaSpec:
    """In the dtype in which the weights are stored they are mapped, and nobody's own."""
    return replace(spec, dtype="auto")


@pytest.fixture(scope="module")
def first(own_dtype: ReplicaSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    with passing_folder(tmp_path_factory, "first") as folder:
        store = Store(folder / "store", floor_bytes=0)
        with hosted(folder / "host", own_dtype, snapshots=str(store.root)) as host:
            ready = host.wait_ready()
            assert loaded_from(host) == "source"
            tokens = said(host)  # it answers while the snapshot is made
            eventually(lambda: portable(store) is not None, 60, "the snapshot is published")
            eventually(lambda: len(host.members()) == 1, 10, "the process that captured has ended")
            phases = list(dict.fromkeys(report.phase for report in host.reports.of(PhaseReport)))
            counted = host.reports.of(BytesReport)
        manifest = portable(store)
        assert manifest is not None
        yield First(store, manifest, tokens, ready.answer, phases, counted)


def test_the_phases_come_in_order_and_the_bytes_are_those_of_the_files(first: First, smollm2: Path) -> None:
    assert first.phases == [phase for phase in LOAD_PHASES if phase is not ReplicaState.FETCHING]
    size = (smollm2 / "model.safetensors").stat().st_size
    done = [report.done for report in first.counted]
    assert {report.total for report in first.counted} == {size}
    assert done == sorted(done) and done[-1] == size


def test_it_was_verified_by_a_real_answer(first: First) -> None:
    assert "Paris" in first.answer


def test_the_first_load_makes_a_snapshot_with_the_engines_own_answer(first: First) -> None:
    assert first.manifest.canary is not None and len(first.manifest.canary.tokens) == 16
    assert "torch engine, torch 2." in first.manifest.writer and "bfloat16" in first.manifest.writer
    assert first.manifest.measured.memory_bytes["replica_pss"] > 0
    assert first.manifest.measured.phases_s["load"] > 0


def test_mapped_weights_answer_as_the_checkpoint_does_and_two_engines_share_them(
    first: First, own_dtype: ReplicaSpec, tmp_path: Path
) -> None:
    store = str(first.store.root)
    with hosted(tmp_path / "one", own_dtype, snapshots=store) as one:
        one.wait_ready()
        assert loaded_from(one) == f"portable {first.manifest.snapshot_id}"
        assert said(one) == first.tokens
        with hosted(tmp_path / "two", own_dtype, snapshots=store) as two:
            two.wait_ready()
            assert said(two) == first.tokens
            for host in (one, two):
                (weights,) = [
                    found
                    for found in psutil.Process(host.process.pid).memory_maps()
                    if found.path.endswith(".safetensors")
                ]
                assert weights.rss > 0.95 * first.manifest.weight_bytes
                assert weights.pss < 0.55 * first.manifest.weight_bytes, "half of them each"
                assert weights.private_dirty < 2**20
            assert len(one.members()) == len(two.members()) == 1, "nothing captures"


def test_damaged_weights_go_into_quarantine_and_the_checkpoint_is_loaded(
    first: First, own_dtype: ReplicaSpec, tmp_path: Path
) -> None:
    store = Store(linked_copy(first.store.root, tmp_path / "store"), floor_bytes=0)
    file = unlinked(store.find(PORTABLE).folder / first.manifest.weight_files[0].name)
    with file.open("r+b") as weights:
        weights.seek(-1000, os.SEEK_END)
        byte = weights.read(1)
        weights.seek(-1, os.SEEK_CUR)
        weights.write(bytes([byte[0] ^ 4]))
    with hosted(tmp_path / "host", own_dtype, snapshots=str(store.root)) as host:
        host.wait_ready()
        assert loaded_from(host) == "source"
        assert said(host) == first.tokens
        assert "DigestMismatch" in host.log()


def test_one_that_answers_otherwise_goes_into_quarantine(first: First, own_dtype: ReplicaSpec, tmp_path: Path) -> None:
    """Every digest is right, and still it is not what was recorded."""
    store = Store(tmp_path / "store", floor_bytes=0)
    canary, source = first.manifest.canary, first.store.find(PORTABLE).folder
    assert canary is not None
    tokens = (*canary.tokens[:3], canary.tokens[3] + 1, *canary.tokens[4:])
    with store.begin("small", {file.name: file.size for file in first.manifest.files}) as staging:
        for file in first.manifest.files:
            out = staging.file(file.name, file.kind)
            out.write((source / file.name).read_bytes())
            out.finish()
        staging.publish(replace(first.manifest, canary=Canary(canary.prompt, tokens, canary.text)))
    with hosted(tmp_path / "lied-to", own_dtype, snapshots=str(store.root)) as host:
        failed = host.wait_failed(120)
    assert failed.reason is FailureReason.VERIFICATION_FAILED
    assert "was put into quarantine: token 3 of the recorded answer" in failed.message


def test_in_another_dtype_weights_are_its_own_and_answer_as_transformers_does(
    first: First, spec: ReplicaSpec, direct: Direct, tmp_path: Path
) -> None:
    """Also that an answer recorded in another dtype is not held against it."""
    with hosted(tmp_path / "host", spec, snapshots=str(first.store.root)) as host:
        host.wait_ready()
        assert loaded_from(host) == f"portable {first.manifest.snapshot_id}"
        assert [said(host)] == direct.generate([direct.chat(ASK)], 16)
        maps = [found.path for found in psutil.Process(host.process.pid).memory_maps()]
        assert not any(path.endswith(".safetensors") for path in maps)


# --- the end ---------------------------------------------------------------------------------------------------------


def _story(host: Host) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
    body = question("Tell me a long story.", model="small", stream=True, max_tokens=400, ignore_eos=True)
    response, connection = host.request("/v1/chat/completions", body)
    assert response.status == 200 and next(events(response))
    return response, connection


def test_full_is_said_at_once_and_who_leaves_frees_the_slot(
    first: First, own_dtype: ReplicaSpec, tmp_path: Path
) -> None:
    with hosted(tmp_path / "host", own_dtype, snapshots=str(first.store.root)) as host:
        host.wait_ready()
        streams = [_story(host) for _ in range(own_dtype.slots)]
        response, connection = host.request("/v1/chat/completions", question(model="small"))
        with contextlib.closing(connection):
            assert response.status == 503 and response.headers["X-Rewarm-Busy"] == "full"
        for stream, connection in streams:
            stream.close()
            connection.close()
        eventually(lambda: host.gate()["running"] == 0, 5, "slots are free")
        response, connection = host.request("/v1/chat/completions", question(ASK, model="tiny", stream=True))
        with contextlib.closing(connection):
            assert "Paris" in text_of(list(events(response)))
        # Asked to stop in the middle of a stream: at once, and cleanly.
        stream, connection = _story(host)
        started = time.monotonic()
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(5) == 0
        assert time.monotonic() - started < 3
        stream.close()
        connection.close()
        assert not host.members() and not Path(host.socket).exists()
        assert not host.reports.of(FailedReport)


def test_killed_in_a_stream_it_breaks_and_does_not_look_complete(
    first: First, own_dtype: ReplicaSpec, tmp_path: Path
) -> None:
    with hosted(tmp_path / "host", own_dtype, snapshots=str(first.store.root)) as host:
        host.wait_ready()
        response, connection = _story(host)
        with contextlib.closing(connection):
            host.process.kill()
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                response.read()
        eventually(lambda: not host.members(), 5, "nothing is left")


def test_sigterm_while_it_loads(own_dtype: ReplicaSpec, tmp_path: Path) -> None:
    with hosted(tmp_path / "early", own_dtype) as host:
        host.wait_phase("starting")
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(5) == 0
        assert not host.members() and not host.reports.of(FailedReport)


def test_an_encoder_loads_from_its_snapshot_too(minilm: Path, tmp_path: Path) -> None:
    spec = spec_of(minilm, dtype="auto", slots=2)
    store = Store(tmp_path / "store", floor_bytes=0)
    vectors = []
    for name, weights in (("first", "source"), ("second", "portable")):
        with hosted(tmp_path / name, spec, snapshots=str(store.root)) as host:
            assert host.wait_ready().answer == "embedding of 384 numbers"
            assert loaded_from(host).partition(" ")[0] == weights
            status, answer = host.json("/v1/embeddings", {"model": "small", "input": "A cat sits on the mat."})
            assert status == 200
            vectors.append(answer["data"][0]["embedding"])
            eventually(lambda: portable(store) is not None, 60, "the snapshot is published")
    assert vectors[0] == vectors[1]


# --- starts that fail before anything is imported --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason", "says"),
    [
        ({"args": ("--fast",)}, FailureReason.START_REFUSED, "takes no `args`"),
        ({"memory_bytes": 2**20}, FailureReason.NEVER_FITS, "too small"),
        ({"source": "/nowhere/at/all"}, FailureReason.WEIGHTS_MISSING, "nowhere"),
    ],
)
def test_what_cannot_start_says_so_at_once(
    spec: ReplicaSpec, tmp_path: Path, fields: dict[str, object], reason: FailureReason, says: str
) -> None:
    with hosted(tmp_path / "host", replace(spec, **fields)) as host:
        failed = host.wait_failed(within_s=20)
    assert failed.reason is reason and says in failed.message


def test_a_model_that_it_cannot_run_is_refused_with_the_reason(smollm2: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for path in smollm2.iterdir():
        (source / path.name).symlink_to(path)
    config = json.loads((smollm2 / "config.json").read_text())
    (source / "config.json").unlink()
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))
    with hosted(tmp_path / "host", spec_of(source)) as host:
        failed = host.wait_failed(within_s=60)
    assert failed.reason is FailureReason.START_REFUSED and "quantised" in failed.message
