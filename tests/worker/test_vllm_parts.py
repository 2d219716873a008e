"""The parts of vLLM's host that need no vLLM: environment, temporary folder, verdicts."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewarm.messages import ReplicaSpec
from rewarm.states import FailureReason
from snapshots import WeightsCorrupt, WeightsMissing
from worker.engines.vllm import environment, failure
from worker.engines.vllm.environment import TemporaryFolder


def _spec(*args: str) -> ReplicaSpec:
    return ReplicaSpec(model="m", engine="vllm", served_names=("m",), slots=1, args=args)


# --- environment -----------------------------------------------------------------------------------------------------


def test_on_the_cpu_the_parent_runs_on_one_thread() -> None:
    variables = {"OMP_NUM_THREADS": "6"}
    environment.prepare(variables, cpu=True)
    assert variables["OMP_NUM_THREADS"] == "1" and variables[environment.THREADS_ENV] == "6"
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_on_a_gpu_threads_are_vllms_business() -> None:
    variables: dict[str, str] = {}
    environment.prepare(variables, cpu=False)
    assert "OMP_NUM_THREADS" not in variables and "VLLM_ENABLE_V1_MULTIPROCESSING" not in variables


def test_nothing_is_fetched_and_no_admin_routes_whatever_the_operator_says() -> None:
    variables = {"HF_HUB_OFFLINE": "0", "VLLM_SERVER_DEV_MODE": "1"}
    environment.prepare(variables, cpu=False)
    assert variables["HF_HUB_OFFLINE"] == "1" and variables["VLLM_SERVER_DEV_MODE"] == "0"


@pytest.mark.parametrize(("args", "disabled"), [((), True), (("--no-enforce-eager",), False), (("-O2",), False)])
def test_functions_are_compiled_only_where_it_was_asked_for(args: tuple[str, ...], disabled: bool) -> None:
    variables: dict[str, str] = {}
    environment.prepare(variables, args, cpu=True)
    assert (variables.get("TORCHDYNAMO_DISABLE") == "1") is disabled


# --- temporary folder ------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    base = Path("/tmp") / f"rw-{os.getpid()}"  # a test's own path is too long for sockets in it
    base.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(base))
    yield base
    for folder in base.iterdir():
        subprocess.run(["rm", "-r", str(folder)], check=True)
    base.rmdir()


def test_what_a_killed_engine_left_is_swept_by_the_next(temporary: Path) -> None:
    program = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from worker.engines.vllm.environment import TemporaryFolder\n"
        "print(TemporaryFolder().path, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(temporary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        mine = TemporaryFolder()
        assert left.is_dir(), "a living engine's folder must stay"
        process.kill()
        process.wait()
    other = TemporaryFolder()
    assert not left.exists() and mine.path.is_dir()
    mine.remove()
    other.remove()
    assert not list(temporary.iterdir())


def test_vllm_is_pointed_to_it(temporary: Path) -> None:
    folder, variables = TemporaryFolder(), dict[str, str]()
    folder.use(variables)
    assert variables["TMPDIR"] == variables["VLLM_RPC_BASE_PATH"] == str(folder.path)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()


# --- verdicts --------------------------------------------------------------------------------------------------------

WEIGHTS = Path("/m/model.safetensors")


@pytest.mark.parametrize(
    ("error", "loading", "reason"),
    [
        (WeightsCorrupt(WEIGHTS, "truncated"), False, FailureReason.WEIGHTS_CORRUPT),
        (WeightsMissing(WEIGHTS, "gone"), False, FailureReason.WEIGHTS_MISSING),
        (MemoryError(), True, FailureReason.OUT_OF_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True, FailureReason.OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), False, FailureReason.OUT_OF_MEMORY),
        (ValueError("… is less than desired GPU memory utilization (0.9 …"), False, FailureReason.NO_ROOM),
        (ValueError("KV cache is needed, which is larger than the available KV cache memory"), False,
         FailureReason.NEVER_FITS),
        (KeyError("layers.0.unknown"), True, FailureReason.WEIGHTS_CORRUPT),
        (KeyError("unknown"), False, FailureReason.START_REFUSED),
        (ValueError("Following weights were not initialized from checkpoint: {…}"), True,
         FailureReason.WEIGHTS_CORRUPT),
        (ValueError("SomeForCausalLM does not support LoRA yet."), True, FailureReason.START_REFUSED),
        (FileNotFoundError("x"), True, FailureReason.WEIGHTS_MISSING),
        (ImportError("No module named 'vllm'"), False, FailureReason.START_REFUSED),
        (RuntimeError("a kernel failed"), False, FailureReason.ENGINE_EXITED),
    ],
)  # fmt: skip
def test_the_reason_of_an_error(error: Exception, loading: bool, reason: FailureReason) -> None:
    assert failure.classify(error, loading=loading) is reason


def test_the_first_cause_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "failure.json"
    monkeypatch.setenv(failure.FAILURE_ENV, str(path))
    with pytest.raises(KeyError), failure.recorded("load"):
        raise KeyError("layers.7.strange.weight")
    log = logging.getLogger("test.engine.core")
    log.propagate = False
    log.addHandler(failure.FailureRecorder())
    try:
        raise RuntimeError("everything after it")
    except RuntimeError:
        log.exception("EngineCore failed to start.")
    recorded = failure.read_recorded(path)
    assert recorded is not None
    assert recorded[0] is FailureReason.WEIGHTS_CORRUPT and "strange" in recorded[1]


@pytest.mark.parametrize("content", ["", "{}", '{"reason": "made up", "message": "x"}', json.dumps([1])])
def test_an_unreadable_cause_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "failure.json").write_text(content)
    assert failure.read_recorded(tmp_path / "failure.json") is None
