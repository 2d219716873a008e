"""What must stand in the environment before torch or transformers is imported, and on how many threads they run."""

from __future__ import annotations

import os
from collections.abc import MutableMapping


def prepare(environment: MutableMapping[str, str]) -> None:
    """What the operator gave (its ``env``) stays, but for what we rely on. A second time changes nothing."""
    environment["HF_HUB_OFFLINE"] = "1"  # weights are on this disk: nothing is ever fetched behind the operator's back
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would not survive a fork
    environment.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    # Held to one thread until the model runs, so that a process of the pool can be forked: with libgomp the first
    # parallel region hangs in a child whose parent has run one. The runner raises the number itself.
    environment["OMP_NUM_THREADS"] = "1"


def default_threads(cpus: float | None = None) -> int:
    """All cores but one: that is the event loop's, and a spinning OpenMP thread would take it away. Not more than it
    may use."""
    most = max(1, len(os.sched_getaffinity(0)) - 1)
    return most if cpus is None else min(most, max(1, int(cpus)))
