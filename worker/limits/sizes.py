"""How much is too much. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rewarm.messages import ReplicaSpec
from rewarm.units import format_bytes
from worker.engines.estimate import Estimate

RUNAWAY_SHARE = 0.5
RUNAWAY_BYTES = 2**30
"""A limit that nobody configured is the estimated need, half of it again, and this: to end what runs away, not to hold
an engine to an estimate."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all processes of one replica together, None: no limit. ``memory_bytes`` is RAM."""

    memory_bytes: int | None = None
    cpus: float | None = None

    @property
    def memory_words(self) -> str:
        return (
            f"more than its memory limit of {format_bytes(self.memory_bytes or 0)}: it was ended before it could take "
            f"the memory of others; lower `slots` or `context_length`, or raise `memory_limit`"
        )


def limits_of(spec: ReplicaSpec, need: Estimate) -> Limits:
    """As configured. By default none where the need was assumed and not estimated: on GPUs, or of a `command` that says
    nothing."""
    memory = spec.memory_limit_bytes
    if memory is None and not need.gpus and not need.assumed:
        memory = int(need.total_bytes * (1 + RUNAWAY_SHARE)) + RUNAWAY_BYTES
    return Limits(memory or None, spec.cpus)


def cores_for(cpus: float, available: Collection[int], taken: Iterable[Collection[int]]) -> frozenset[int]:
    """Which cores to hold an engine to where there is no quota: those that fewest others are held to."""
    count = Counter(core for cores in taken for core in cores)
    ranked = sorted(available, key=lambda core: (count[core], core))
    return frozenset(ranked[: max(1, math.ceil(cpus))])


def threads_for(cpus: float) -> int:
    """Of an engine's own: more than its share of cores would wait for each other."""
    return max(1, int(cpus))
