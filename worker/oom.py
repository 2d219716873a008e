"""Was it memory, and what was it for? Evidence of the kernel's out-of-memory killer, and the words of engines.

Words come from vLLM 0.32, torch 2.13 and llama.cpp; where they do not say, the phase of the load does.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from rewarm.states import FailureReason, ReplicaState

_WORDS = re.compile(
    r"out of memory|OutOfMemory|MemoryError|cannot allocate memory|can't allocate memory|std::bad_alloc|"
    r"failed to allocate|unable to allocate|ENOMEM|No available memory for the cache blocks|"
    r"larger than the available KV cache memory|less than desired GPU memory utilization",
    re.IGNORECASE,
)


_CACHE = re.compile(
    r"KV cache is needed|available KV cache memory|No available memory for the cache blocks|"
    r"memory for (the )?kv[ -]?cache|buffer for kv cache|kv_cache_init|llama_kv_cache|allocat\w+ (the )?KV cache|"
    r"Decrease --kv-cache-memory-bytes|failed to initialize the context",
    re.IGNORECASE,
)
_WEIGHTS = re.compile(
    r"error loading model|llama_model_load|unable to allocate \w+ buffer|alloc_tensor_range|load_model|load_weights|"
    r"loading (model )?weights|initialize_model|read_checkpoint",
    re.IGNORECASE,
)
_ANSWERS = re.compile(
    r"compute buffers|warming up|dummy requests|lowering `?max_num_seqs|CUDA graph|activations", re.IGNORECASE
)


class Shortage(StrEnum):
    """What found no room."""

    WEIGHTS = "weights"
    CACHE = "cache"
    ANSWERS = "answers"  # what a forward pass needs while it runs
    UNKNOWN = "unknown"


_BY_PHASE: Mapping[ReplicaState, Shortage] = {
    ReplicaState.RESTORING: Shortage.WEIGHTS,
    ReplicaState.INITIALISING: Shortage.CACHE,
    ReplicaState.WARMING: Shortage.ANSWERS,
    ReplicaState.VERIFYING: Shortage.ANSWERS,
    ReplicaState.READY: Shortage.ANSWERS,
    ReplicaState.DRAINING: Shortage.ANSWERS,
}
_REASONS: Mapping[Shortage, FailureReason] = {
    Shortage.WEIGHTS: FailureReason.WEIGHTS_OUT_OF_MEMORY,
    Shortage.CACHE: FailureReason.CACHE_OUT_OF_MEMORY,
}
_ADVICE: Mapping[Shortage, str] = {
    Shortage.WEIGHTS: "the weights do not fit: take a smaller `dtype` or a quantised checkpoint, or give it more "
    "`memory` or another `device`",
    Shortage.CACHE: "the weights fit, the KV cache for {slots} slots of {context} tokens does not: lower `slots` or "
    "`context_length`, or give it more `memory`",
    Shortage.ANSWERS: "weights and cache fit, what {slots} requests at once need beside them does not: lower `slots`, "
    "or raise `reserve` or `memory`",
    Shortage.UNKNOWN: "give it more `memory`, or lower `slots` or `context_length`",
}


def says_out_of_memory(text: str) -> bool:
    return _WORDS.search(text) is not None


def shortage(text: str, phase: ReplicaState) -> Shortage:
    """What an engine that ran out of memory wanted it for. The last words count: engines log the cause after what went
    well before it."""
    found = [
        (match.start(), kind)
        for kind, words in ((Shortage.CACHE, _CACHE), (Shortage.WEIGHTS, _WEIGHTS), (Shortage.ANSWERS, _ANSWERS))
        for match in words.finditer(text)
    ]
    return max(found)[1] if found else _BY_PHASE.get(phase, Shortage.UNKNOWN)


def told_apart(message: str, log: str, phase: ReplicaState, slots: int, context: int | None) -> Told:
    """Reason and message of a failure that is known to be for want of memory, with what can be done about it."""
    own = shortage(message, ReplicaState.COLD)
    kind = own if own is not Shortage.UNKNOWN else shortage(log, phase)
    advice = _ADVICE[kind].format(slots=slots, context=context or "full")
    if advice in message:
        return Told(_REASONS.get(kind, FailureReason.OUT_OF_MEMORY), message)
    return Told(_REASONS.get(kind, FailureReason.OUT_OF_MEMORY), f"{message}; {advice}")


def with_advice(message: str, slots: int, context: int | None) -> str:
    """Of an engine that refuses to start because its own arithmetic does not come out."""
    if shortage(message, ReplicaState.COLD) is not Shortage.CACHE:
        return message
    return f"{message}; {_ADVICE[Shortage.CACHE].format(slots=slots, context=context or 'full')}"


class Told(NamedTuple):
    reason: FailureReason
    message: str


class OomWatch:
    """Remember the kernel's counters when a process starts; :meth:`happened` tells whether one grew since.

    Looks at this process's memory cgroup (v2 ``memory.events``, v1 ``memory.oom_control``) and at ``/proc/vmstat``,
    which counts the whole machine: dmesg is closed to most users.
    """

    def __init__(self) -> None:
        self._before = _kills()

    def happened(self) -> bool:
        return any(now > self._before.get(source, now) for source, now in _kills().items())

    def explains(self, exit_status: int | None) -> bool:
        """A process that ended by SIGKILL (asyncio: negative signal; a shell: 128 + signal) while the counters grew."""
        return exit_status in (-signal.SIGKILL, 128 + signal.SIGKILL) and self.happened()


def memory_cgroup() -> Path | None:
    """This process's memory cgroup folder: unified (v2) or the v1 memory controller. None when it cannot be seen."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    places: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if controllers == "memory" or "memory" in controllers.split(","):
            places += [Path("/sys/fs/cgroup/memory") / relative, Path("/sys/fs/cgroup/memory")]
        elif controllers == "":
            places += [Path("/sys/fs/cgroup") / relative, Path("/sys/fs/cgroup")]
    for place in places:
        if (place / "memory.events").is_file() or (place / "memory.oom_control").is_file():
            return place
    return None


def _kills() -> dict[str, int]:
    out: dict[str, int] = {}
    sources = [("vmstat", Path("/proc/vmstat"))]
    group = memory_cgroup()
    if group is not None:
        sources += [("v2", group / "memory.events"), ("v1", group / "memory.oom_control")]
    for name, path in sources:
        try:
            text = path.read_text()
        except OSError:
            continue
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill" and value.strip().isdigit():
                out[name] = int(value)
    return out
