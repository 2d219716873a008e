"""Real engines in a stack. A vLLM costs seconds of all cores to start, and its worker would do more behind its
answers than most tests are about: so nothing is made ahead and nothing is captured, unless a test says so.

    async with Stack(tmp_path, {"m": vllm(smollm2)}, pool=NO_POOL) as stack:
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.stack import Stack

NO_POOL: Mapping[str, Any] = {"enabled": "off"}


def vllm(source: Path, **fields: Any) -> dict[str, Any]:
    """The configuration of the model. ``snapshot="auto"`` for tests that load from one."""
    return {
        "engine": "vllm",
        "source": str(source),
        "context_length": 1024,
        # In bfloat16 the first token of the Paris question is a near tie on some CPUs; and those without instructions
        # for it compute far longer.
        "dtype": "float32",
        "slots": 4,
        "idle_after": "1h",
        "snapshot": "off",
        **fields,
    }


def torch_model(source: Path, **fields: Any) -> dict[str, Any]:
    """The same for the torch engine."""
    return {
        "engine": "torch",
        "source": str(source),
        "slots": 4,
        "idle_after": "1h",
        "snapshot": "off",
        **fields,
    }


def engine_cores(stack: Stack) -> list[psutil.Process]:
    """vLLM renames its engine's process; a host without one would run it inside itself."""
    return [process for process in stack.engines() if "EngineCor" in _words(process)]


def _words(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join([process.name(), *process.cmdline()])
    return ""
