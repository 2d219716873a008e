"""What all processes that are forked have in common: whether torch lets itself be forked, and what was imported."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterable
from typing import Any


class InParts(Exception):
    """An engine cannot be built ahead as a whole, and why. Nothing of it was begun."""


def torch_forbids_forking() -> str:
    """Why a fork of this process would not be safe as far as torch goes; empty: it is.

    A CUDA context does not survive a fork, and a child of a process that ran OpenMP with several threads hangs in its
    own first region with several.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return ""
    if torch.cuda.is_initialized():
        return "CUDA is initialised"
    if torch.get_num_threads() != 1 or os.environ.get("OMP_NUM_THREADS") != "1":
        return f"OpenMP may use {torch.get_num_threads()} threads"
    return ""


def versions_of(distributions: Iterable[str]) -> dict[str, str]:
    """Of Python and of those that are installed."""
    out = {"python": sys.version.split()[0]}
    for name in distributions:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return out
