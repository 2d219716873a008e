"""What can make the leader decide. The view is always fresh; an event says what happened besides.

Demand is no event of its own: enqueueing a ticket writes the model's ``demand_ms`` in the same script, so the view
shows it although the ticket may be gone by then and the hint may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rewarm.config import PlacementRules
from rewarm.messages import CatalogueEntry


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed, or something in Redis changed."""


@dataclass(frozen=True, slots=True)
class Elected:
    """This process has just become the leader, in ``term``."""

    term: int


@dataclass(frozen=True, slots=True)
class Configured:
    """The configuration was read: at election, and again at every reload."""

    entries: Mapping[str, CatalogueEntry] = field(default_factory=dict)
    rules: PlacementRules = field(default_factory=PlacementRules)


@dataclass(frozen=True, slots=True)
class Operator:
    """A command of a person: ``kind`` is wake, sleep or drain; ``target`` a model, or a worker or replica to drain."""

    kind: str
    target: str


@dataclass(frozen=True, slots=True)
class RedisLost:
    pass


@dataclass(frozen=True, slots=True)
class RedisBack:
    """Redis answers again. ``empty``: without anything of this fleet."""

    empty: bool = False


Event = Tick | Elected | Configured | Operator | RedisLost | RedisBack
