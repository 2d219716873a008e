"""One real SmolLM2, prepared once, and one real vLLM that serves it for the tests of this folder that only ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from rewarm.messages import ReplicaSpec
from tests.worker.vllm.hosting import Host, hosted


@pytest.fixture(scope="session")
def spec(smollm2: Path) -> ReplicaSpec:
    """float32: in bfloat16 the first token of the Paris question is a near tie, which kernels decide differently."""
    return ReplicaSpec(
        model="smollm2",
        engine="vllm",
        served_names=("smollm2", "small"),
        slots=2,
        source=str(smollm2),
        context_length=1024,
        dtype="float32",
        args=("--enable-auto-tool-choice", "--tool-call-parser=hermes"),
    )


@pytest.fixture(scope="package")
def engine(spec: ReplicaSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Ready, for tests that leave it as they found it. It may make no snapshots, into ``store``."""
    folder = tmp_path_factory.mktemp("shared")
    with hosted(folder, replace(spec, snapshot="off"), snapshots=str(folder / "store")) as host:
        host.wait_ready()
        yield host
