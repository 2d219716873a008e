"""How long the pods of places usually take, read once for each pod that is to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller.places import Place
from fleet import FleetView, Registry
from rewarm.pending import Usual, usual_of


class Usuals:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[str, Usual | None] = {}

    async def of(self, view: FleetView, places: Mapping[str, Place]) -> Mapping[str, Place]:
        """``places``, those that wait for a pod with what theirs have taken so far. Raise QueueUnavailable."""
        coming = {name for name in places if any(not want.boot for want in view.wants.get(name, {}).values())}
        # Forgotten once a pod has taken what is wanted: its worker then writes what it took to come.
        self._known = {name: usual for name, usual in self._known.items() if name in coming}
        for name in coming - self._known.keys():
            self._known[name] = usual_of(await self._registry.history(name), places[name].model)
        return {name: replace(place, usual=self._known.get(name)) for name, place in places.items()}
