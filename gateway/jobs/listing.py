"""The query of ``GET /v1/jobs``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rewarm.errors import InvalidRequest
from rewarm.jobs import JobState

MAX_LIMIT = 100
DEFAULT_LIMIT = 20
_KINDS = frozenset(("job", "response", "batch"))
_STATES = {state.value: state for state in JobState}


@dataclass(frozen=True, slots=True)
class Listing:
    """``after``: the id that the last page ended with. ``states`` None: all. ``tenant`` None: the asker's own."""

    limit: int = DEFAULT_LIMIT
    after: str | None = None
    states: frozenset[JobState] | None = None
    kinds: frozenset[str] = frozenset(("job", "response"))
    tenant: str | None = None


def read_listing(query: Mapping[str, str]) -> Listing:
    """Raise InvalidRequest, with the parameter."""
    return Listing(
        limit=_limit(query.get("limit")),
        after=query.get("after") or None,
        states=_states(query.get("status")),
        kinds=_kinds(query.get("kind")),
        tenant=query.get("tenant") or None,
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MAX_LIMIT):
        raise InvalidRequest(f"`limit` must be a number from 1 to {MAX_LIMIT}", param="limit")
    return int(text)


def _states(text: str | None) -> frozenset[JobState] | None:
    if not text:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _STATES:
            raise InvalidRequest(f"`status`: {name!r} is none of {', '.join(_STATES)}", param="status")
    states = {_STATES[name] for name in names}
    if JobState.LOADING in states:  # shown, never stored
        states = (states - {JobState.LOADING}) | {JobState.QUEUED}
    return frozenset(states)


def _kinds(text: str | None) -> frozenset[str]:
    if not text:
        return frozenset(("job", "response"))
    kinds = frozenset(name.strip() for name in text.split(","))
    if not kinds <= _KINDS:
        raise InvalidRequest(f"`kind` must be one or more of {', '.join(sorted(_KINDS))}", param="kind")
    return kinds
