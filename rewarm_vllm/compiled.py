"""What torch compiled for a model, kept with its snapshot: 57 s of a start become 11 on two cores.

Only on the CPU, and only where vLLM is told to compile (eager is a worker's default). vLLM's own cache of ahead-of-time
compiled functions cannot be read back by its CPU build (0.32: every second start fails to load it and compiles again),
so it is switched off there, and inductor's cache is what is kept. It lies in a private folder while an engine runs.

A compiled model never computes from *packed* weights: inductor does not lower a tensor that oneDNN laid out. It takes
*sharded* ones, and those carry the cache.
"""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import vllm
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from vllm.config import CompilationMode

from rewarm_vllm.options import COMPILE_FOLDER_ENV
from snapshots import (
    CheckpointError,
    EngineCacheRefused,
    Flavour,
    Lease,
    Store,
    cpu_device,
    has_engine_cache,
    unpack_engine_cache,
)

_INDUCTOR_ENV = "TORCHINDUCTOR_CACHE_DIR"
_AOT_ENV = "VLLM_USE_AOT_COMPILE"


def compiles(vllm_config: Any) -> bool:
    return bool(vllm_config.compilation_config.mode not in (None, CompilationMode.NONE))


def best_flavour(vllm_config: Any) -> Flavour:
    """What a snapshot for this engine is best made as."""
    return Flavour.SHARDED if compiles(vllm_config) else Flavour.PACKED


def private_folder(vllm_config: Any) -> Path | None:
    """Let this process compile into a folder of its own (a worker names one for all processes of an engine).

    None where nothing is compiled, on a GPU, and where the operator named a folder: that one is left to him.
    """
    if not compiles(vllm_config) or vllm_config.device_config.device_type != "cpu":
        return None
    named = os.environ.get(COMPILE_FOLDER_ENV)
    given = os.environ.get(_INDUCTOR_ENV)
    # torch writes its default into the environment, which children inherit, also with another TMPDIR.
    if given not in (None, named) and Path(given).name != Path(default_cache_dir()).name:
        return None
    if os.environ.setdefault(_AOT_ENV, "0") != "0":
        return None
    if named:
        folder = Path(named)
        folder.mkdir(mode=0o700, exist_ok=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="rewarm-compiled-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[COMPILE_FOLDER_ENV] = str(folder)
    os.environ[_INDUCTOR_ENV] = str(folder)
    return folder


def made_by() -> Mapping[str, str]:
    """What a cache is bound to. torch binds each entry to its graph and more besides; this is the fence around it."""
    return {
        "vllm": vllm.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": cpu_device(),
    }


def usable(lease: Lease, store: Store | None) -> bool:
    """Whether the snapshot has a cache that this engine would take."""
    if store is None or not has_engine_cache(lease):
        return False
    with tempfile.TemporaryDirectory(prefix="rewarm-compiled-") as folder:
        return restore(lease, store, Path(folder)) is None


def restore(lease: Lease, store: Store | None, folder: Path) -> str | None:
    """Why the snapshot's cache was not put into ``folder``; None: it was, or others of this engine had filled it."""
    if store is None or not has_engine_cache(lease):
        return f"{lease.snapshot_id} has no compile cache"
    if any(folder.iterdir()):
        return None
    try:
        unpack_engine_cache(lease, made_by(), store, folder)
    except (EngineCacheRefused, CheckpointError, OSError, ValueError) as error:
        shutil.rmtree(folder, ignore_errors=True)  # never half a cache
        folder.mkdir(mode=0o700)
        return str(error)
    return None
