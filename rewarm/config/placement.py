"""``placement``: who is in memory when not all models fit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from rewarm.config.base import Duration, Section

PRIORITY_NAMES = ("high", "normal", "low")


def priority_name(priority: int) -> str:
    """Of a model, as the configuration has it."""
    return PRIORITY_NAMES[min(max(priority, 0), len(PRIORITY_NAMES) - 1)]


def _off(value: object) -> object:
    """YAML reads a bare ``off`` as false."""
    return "off" if value is False else value


class PlacementConfig(Section):
    max_models: int | None = Field(default=None, ge=1)  # that a worker holds at once, asleep ones included
    eviction: Annotated[Literal["lru", "off"], BeforeValidator(_off)] = "lru"  # may a start take another's room
    min_residency: Duration = Field(default=timedelta(seconds=10), ge=timedelta(0))  # since ready: its room is its own
    max_wait: Duration = Field(default=timedelta(seconds=60), ge=timedelta(seconds=1))  # longest turn while others wait
    concurrent_loads: int = Field(default=4, ge=1)  # of a worker

    @model_validator(mode="after")
    def _turns(self) -> PlacementConfig:
        if self.min_residency > self.max_wait:
            raise ValueError("min_residency is above max_wait: a turn could not end in time")
        return self

    def rules(self) -> PlacementRules:
        return PlacementRules(
            max_models=self.max_models,
            evict=self.eviction == "lru",
            min_residency_ms=int(self.min_residency.total_seconds() * 1000),
            max_wait_ms=int(self.max_wait.total_seconds() * 1000),
            concurrent_loads=self.concurrent_loads,
        )


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """The same as the leader decides by it."""

    max_models: int | None = None
    evict: bool = True
    min_residency_ms: int = 10_000
    max_wait_ms: int = 60_000
    concurrent_loads: int = 4
