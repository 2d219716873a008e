"""How a host ends: asked, killed, bereft of its engine core, or refused before it began. Nothing of it stays behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rewarm.messages import ReplicaSpec
from rewarm.states import FailureReason
from tests.worker.vllm.hosting import REPOSITORY, Host, events, eventually, hosted, question
from worker.report import FailedReport

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300)]


def _gone(host: Host) -> bool:
    return host.process.poll() is not None and not host.members()


def _runs(pid: int) -> bool:
    """A zombie does not: other tests make this process the subreaper of orphans, and nobody reaps this one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _left(host: Host) -> list[Path]:
    return list(host.temporary.glob("rewarm-vllm-*"))


def _changed(spec: ReplicaSpec, **changes: Any) -> ReplicaSpec:
    return msgspec.structs.replace(spec, **changes)


def test_sigterm_ends_it_at_once_and_leaves_nothing(spec: ReplicaSpec, tmp_path: Path) -> None:
    with hosted(tmp_path / "asked", spec) as host:
        host.wait_ready()
        assert _left(host)
        started = time.monotonic()
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(5) == 0
        assert time.monotonic() - started < 2
        eventually(lambda: _gone(host), 1, "the engine core is gone")
        assert not Path(host.socket).exists()
        assert not host.reports.of(FailedReport)
        assert "Traceback" not in host.log()
        assert not _left(host)


def test_the_engine_core_dies_with_its_host(spec: ReplicaSpec, tmp_path: Path) -> None:
    with hosted(tmp_path / "killed", spec) as host:
        host.wait_ready()
        core = host.engine_core().pid
        host.process.kill()
        eventually(lambda: _gone(host) and not _runs(core), 10, "the engine core followed")


def test_an_engine_core_that_dies_in_a_stream_is_reported_within_a_second(spec: ReplicaSpec, tmp_path: Path) -> None:
    with hosted(tmp_path / "bereft", spec) as host:
        host.wait_ready()
        body = question("Tell me a long story.", stream=True, max_tokens=900, ignore_eos=True)
        response, connection = host.request("/v1/chat/completions", body)
        with contextlib.closing(connection):
            assert next(events(response))
            started = time.monotonic()
            os.kill(host.engine_core().pid, signal.SIGKILL)
            failed = host.wait_failed(within_s=5)
            assert time.monotonic() - started < 1.5
            assert failed.reason is FailureReason.ENGINE_EXITED and failed.exit_status == -signal.SIGKILL
            assert "SIGKILL" in failed.message and "while it served" in failed.message
            # The client's stream breaks. It must not look complete.
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                response.read()
        assert _gone(host)


def test_sigterm_while_it_loads(spec: ReplicaSpec, tmp_path: Path) -> None:
    with hosted(tmp_path / "early", spec) as host:
        host.wait_phase("restoring")
        host.process.send_signal(signal.SIGTERM)
        host.process.wait(3)
        eventually(lambda: _gone(host), 1, "nothing is left")
        assert not _left(host)


# --- starts that fail before anything is imported --------------------------------------------------------------------


def _fails_at_once(folder: Path, spec: ReplicaSpec) -> FailedReport:
    started = time.monotonic()
    with hosted(folder, spec) as host:
        failed = host.wait_failed(within_s=10)
        assert time.monotonic() - started < 5
        assert _gone(host)
    return failed


def _copied(smollm2: Path, target: Path, *, truncate: int = 0) -> Path:
    """The checkpoint's small files, and its weights as a link, or as a copy that lacks its last bytes."""
    target.mkdir()
    for path in smollm2.iterdir():
        if path.name != "model.safetensors":
            shutil.copy(path, target)
    weights = smollm2 / "model.safetensors"
    if truncate:
        shutil.copyfile(weights, target / weights.name)
        os.truncate(target / weights.name, weights.stat().st_size - truncate)
    else:
        (target / weights.name).symlink_to(weights)
    return target


def test_truncated_weights(spec: ReplicaSpec, smollm2: Path, tmp_path: Path) -> None:
    source = _copied(smollm2, tmp_path / "model", truncate=1000)
    failed = _fails_at_once(tmp_path / "host", _changed(spec, source=str(source)))
    assert failed.reason is FailureReason.WEIGHTS_CORRUPT
    assert "model.safetensors" in failed.message and "truncated" in failed.message


def test_weights_of_another_model(spec: ReplicaSpec, smollm2: Path, tmp_path: Path) -> None:
    """vLLM would cut them to size and answer nonsense."""
    source = _copied(smollm2, tmp_path / "model")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "intermediate_size": 1024}))
    failed = _fails_at_once(tmp_path / "host", _changed(spec, source=str(source)))
    assert failed.reason is FailureReason.WEIGHTS_CORRUPT and "config.json asks for" in failed.message


def test_missing_weights(spec: ReplicaSpec, tmp_path: Path) -> None:
    failed = _fails_at_once(tmp_path / "host", _changed(spec, source=str(tmp_path / "nowhere")))
    assert failed.reason is FailureReason.WEIGHTS_MISSING and "nowhere" in failed.message


def test_too_little_memory_for_one_request(spec: ReplicaSpec, tmp_path: Path) -> None:
    failed = _fails_at_once(tmp_path / "host", _changed(spec, memory_bytes=2**20))
    assert failed.reason is FailureReason.NEVER_FITS and "too small" in failed.message


@pytest.mark.parametrize("argument", ["--max-num-seqs=9", "--port", "--api_key=x"])
def test_arguments_that_are_not_the_operators(spec: ReplicaSpec, tmp_path: Path, argument: str) -> None:
    failed = _fails_at_once(tmp_path / "host", _changed(spec, args=(argument,)))
    assert failed.reason is FailureReason.START_REFUSED and "may not set" in failed.message


# --- starts that vLLM fails ------------------------------------------------------------------------------------------


def _fails(folder: Path, spec: ReplicaSpec, **host_fields: Any) -> FailedReport:
    with hosted(folder, spec, **host_fields) as host:
        failed = host.wait_failed(within_s=120)
        assert _gone(host)
    return failed


def test_arguments_that_vllm_refuses(spec: ReplicaSpec, tmp_path: Path) -> None:
    failed = _fails(tmp_path / "host", _changed(spec, args=("--no-such-option",)))
    assert failed.reason is FailureReason.START_REFUSED and "no-such-option" in failed.message


def test_what_the_parser_refuses() -> None:
    """Through vLLM's own parser, imported once for all cases."""
    cases = [
        ("--max-num-seq", "9"),  # abbreviated, as the parser allows: still not the operator's
        ("--tool-call-parser=unheard-of", "--enable-auto-tool-choice", "extra-model"),
        ("--max-num-batched-tokens", "many"),
        ("--enable-auto-tool-choice",),
        ("--help",),
    ]
    program = (
        "import json, sys\n"
        "from worker.engines.vllm.arguments import ArgumentsRefused, parse\n"
        "for case in json.loads(sys.argv[1]):\n"
        "    try: parse(case, cpu=True); print('accepted')\n"
        "    except ArgumentsRefused as error: print('refused:', error)\n"
        "print('seeds:', [parse(args, cpu=True).seed for args in ([], ['--seed=0'])])\n"
    )
    command = [sys.executable, "-c", program, json.dumps(cases)]
    output = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert "seeds: [None, 0]" in output  # no seed is not vLLM's own, with which each start's chance is the same
    verdicts = [line for line in output.splitlines() if line.startswith(("refused:", "accepted"))]
    assert len(verdicts) == len(cases)
    for verdict, words in zip(verdicts, ("set `slots`", "set `source`", "many", "parser", "options"), strict=True):
        assert verdict.startswith("refused:") and words in verdict


def test_a_context_that_the_model_does_not_have(spec: ReplicaSpec, tmp_path: Path) -> None:
    failed = _fails(tmp_path / "host", _changed(spec, context_length=100_000))
    assert failed.reason is FailureReason.START_REFUSED and "max_model_len" in failed.message


def test_weights_that_the_model_has_no_place_for(spec: ReplicaSpec, smollm2: Path, tmp_path: Path) -> None:
    """Only the engine core can see it; its words reach the report."""
    source = _copied(smollm2, tmp_path / "model", truncate=0)
    content = (smollm2 / "model.safetensors").read_bytes()
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").write_bytes(content.replace(b"model.norm.weight", b"model.nurm.weight", 1))
    failed = _fails(tmp_path / "host", _changed(spec, source=str(source)))
    assert failed.reason is FailureReason.WEIGHTS_CORRUPT and "norm" in failed.message, failed.message


def test_memory_that_others_hold(spec: ReplicaSpec, tmp_path: Path) -> None:
    failed = _fails(tmp_path / "host", spec, kv_bytes=2**45)
    assert failed.reason is FailureReason.NO_ROOM, failed.message
