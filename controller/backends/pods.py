"""What both backends of a cluster share: which places there are, which are needed, and what is seen of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from controller.backends.cluster import Cluster
from controller.backends.conditions import read
from controller.places import Place, Seen
from rewarm.config import KnativeConfig
from rewarm.knative.names import places
from rewarm.messages import CatalogueEntry


class PodPlaces:
    """``kind`` names what a place is to the reader; ``troubles`` are what goes wrong while one is woken, by place."""

    def __init__(self, cluster: Cluster, kind: str, config: KnativeConfig, troubles: Callable[[str], str]) -> None:
        self._cluster, self._kind, self._troubles = cluster, kind, troubles
        self._stall_s = config.pod_stall.total_seconds()
        self._unschedulable_s = config.unschedulable_after.total_seconds()
        self._models: dict[str, str] = {}
        self._wanted_at: dict[str, datetime] = {}
        self._seen: dict[str, tuple[Seen, float]] = {}  # and since when, monotonic

    def configure(self, entries: Mapping[str, CatalogueEntry]) -> None:
        here = {model: entry.policy.max_replicas for model, entry in entries.items() if entry.placed}
        found = places(here)
        self._models = {place.name: place.model for place in found}

    def need(self, needed: frozenset[str]) -> None:
        now = datetime.now(UTC)
        self._wanted_at = {name: self._wanted_at.get(name, now) for name in needed}
        self._seen = {name: seen for name, seen in self._seen.items() if name in needed}

    @property
    def known(self) -> Mapping[str, Place]:
        occupied = self._cluster.occupied()
        return {name: self._place(name, model, occupied) for name, model in self._models.items()}

    def news(self) -> bool:
        """Whether a place that is needed looks different from the last time."""
        before = {name: seen for name, (seen, _) in self._seen.items()}
        now = self.known
        return any(
            replace(now[name].seen, unchanged_s=0.0) != before.get(name) for name in self._wanted_at if name in now
        )

    def _place(self, name: str, model: str, occupied: set[str]) -> Place:
        since = self._wanted_at.get(name)
        found = self._cluster.of(name)
        if since is None:
            leaving = read(name, found, datetime.now(UTC), kind=self._kind).leaving
            return Place(name, model, Seen(leaving=leaving))
        seen = read(name, found, since, kind=self._kind, others=sorted(occupied - {name}))
        trouble = self._troubles(name) or self._cluster.blind
        if trouble and seen.reason is None and seen.message == Seen().message:
            seen = replace(seen, message=f"{seen.message}; {trouble}")
        now = time.monotonic()
        last, at = self._seen.get(name, (None, now))
        if seen != last:
            at = now
        self._seen[name] = (seen, at)
        return Place(name, model, replace(seen, unchanged_s=now - at), self._stall_s, self._unschedulable_s)
