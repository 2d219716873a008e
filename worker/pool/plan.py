"""What a pool does next: a pure function of what there is. One step at a time, the most useful first.

    nothing → the zygote imports → each model prepared → processes ready for each and for any → better preparations

Nothing is made while an engine loads: its start is what the pool is for, and it needs the processor now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ANY = ""
"""In place of a registration's key: for any model."""

_OVER_LIMIT = "the pool takes more memory than it may"


@dataclass(frozen=True, slots=True)
class Goal:
    """``models``: how many are kept prepared at most; ``ready``: processes forked ahead, for each and for any."""

    models: int = 8
    ready: int = 1


@dataclass(frozen=True, slots=True)
class State:
    """``registered``: keys, the most recently used first. ``prepared``: key → processes that are ready for it; ANY is
    among them when the zygote is. ``refused``: keys whose preparation failed. ``again``: those that were prepared with
    less, because what is better was lost, and by now may be tried again. ``retry_at``: no zygote before that;
    ``fork_at``: no other process."""

    registered: Sequence[str]
    prepared: Mapping[str, int] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    outdated: bool = False  # other versions are installed now
    loading: bool = False
    over_limit: bool = False  # takes more memory than it may
    retry_at: float = 0.0
    fork_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Import:
    """Start the zygote."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """What is prepared for ``key`` already stays until it is done."""

    key: str


@dataclass(frozen=True, slots=True)
class Ready:
    """Fork one more process for ``key``."""

    key: str


@dataclass(frozen=True, slots=True)
class Retire:
    """End what is prepared for ``key``; for ANY: the whole pool."""

    key: str
    why: str
    over_limit: bool = False  # as many are too many then


Step = Import | Prepare | Ready | Retire


def next_step(state: State, goal: Goal, now: float) -> Step | None:
    up = ANY in state.prepared
    if up and state.outdated:
        return Retire(ANY, "other versions are installed")
    if up and not state.registered:
        return Retire(ANY, "no model can use it")
    kept = [key for key in state.registered if key not in state.refused][: goal.models]
    for key in state.prepared:
        if key not in (ANY, *kept):
            return Retire(key, "its model has changed or is gone, or others are asked for more")
    if state.over_limit and up:
        return _smaller(state, kept)
    if state.loading or not state.registered:
        return None
    if not up:
        return Import() if now >= state.retry_at else None
    if now < state.fork_at:
        return None
    for key in kept:
        if key not in state.prepared:
            return Prepare(key)
    for key in (*kept, ANY):
        if state.prepared[key] < goal.ready:
            return Ready(key)
    for key in kept:
        if key in state.again:
            return Prepare(key)
    return None


def _smaller(state: State, kept: Sequence[str]) -> Step:
    """The model that was asked for longest ago goes first, the zygote itself last."""
    for key in reversed(kept):
        if key in state.prepared:
            return Retire(key, _OVER_LIMIT, over_limit=True)
    return Retire(ANY, _OVER_LIMIT, over_limit=True)
