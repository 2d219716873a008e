"""Which models of vLLM a pool may serve. Nothing is imported for it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.worker.pool.rig import spec
from worker.engines.forking import InParts
from worker.engines.vllm import image
from worker.engines.vllm.kind import KIND


def test_a_plain_model_is_suitable() -> None:
    assert KIND.unsuitable(spec("m", "--enable-auto-tool-choice", "--tool-call-parser=hermes", source="/m")) == ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--no-enforce-eager",), "compilation"),
        (("--tensor-parallel-size=2",), "--tensor-parallel-size"),
        (("--tensor_parallel_size", "2"), "--tensor-parallel-size"),
        (("-tp", "2"), "-tp"),
        (("--trust-remote-code",), "--trust-remote-code"),
        (("--tool-parser-plugin=/x.py",), "--tool-parser-plugin"),
    ],
)
def test_what_does_not_go_with_a_fork_is_named(args: tuple[str, ...], says: str) -> None:
    assert says in KIND.unsuitable(spec("m", *args))


def test_its_environment_would_come_too_late() -> None:
    assert "env" in KIND.unsuitable(spec("m", env={"VLLM_LOGGING_LEVEL": "DEBUG"}))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"lora_config": object()}, "it has LoRA adapters"),
        ({"speculative_config": object()}, "it decodes speculatively"),
        ({"model_config": SimpleNamespace(is_multimodal_model=True)}, "it is multimodal"),
        ({"parallel_config": SimpleNamespace(world_size=2)}, "it has several ranks"),
        ({}, "snapshots are off for this model"),
    ],
)
def test_an_engine_that_is_not_built_ahead_says_why(
    changed: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "why_not_mapped", lambda config: "snapshots are off for this model")
    fields: dict[str, object] = {
        "lora_config": None,
        "speculative_config": None,
        "model_config": SimpleNamespace(is_multimodal_model=False),
        "parallel_config": SimpleNamespace(world_size=1),
    }
    with pytest.raises(InParts, match=f"^{says}$"):
        image.build(SimpleNamespace(**fields | changed), argparse.Namespace())


def test_the_agent_does_not_import_the_engine_to_ask() -> None:
    code = (
        "import sys; from worker.pool.kind import find; kind = find('vllm'); kind.unusable(); kind.versions();"
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
