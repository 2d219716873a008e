"""What a leader asks of whatever makes workers be there. Wants go through Redis with every backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from controller.places import Place
from rewarm.messages import CatalogueEntry


class Backend(Protocol):
    """A backend acts only while :meth:`lead` runs: of all candidates only the leader's does."""

    @property
    def places(self) -> Mapping[str, Place]:
        """All places of the configuration, with what is seen of those that are needed."""

    def configure(self, entries: Mapping[str, CatalogueEntry]) -> None:
        """These are the models."""

    def need(self, places: frozenset[str]) -> None:
        """These places are to have a pod, all others may lose theirs. Said again at every look; cheap if unchanged."""

    async def lead(self, changed: Callable[[], None], trusted: Callable[[], bool]) -> None:
        """Until cancelled: make what is needed so, and call ``changed`` whenever ``places`` may look different.

        ``trusted`` is asked before every write to the cluster: a leader that was cut off from Redis writes nothing.
        Cancelling leaves the cluster as it is, for the next leader.
        """


class LocalAgents:
    """Machines whose agents somebody else keeps running: there is nothing to do but write wants."""

    @property
    def places(self) -> Mapping[str, Place]:
        return {}

    def configure(self, entries: Mapping[str, CatalogueEntry]) -> None:
        pass

    def need(self, places: frozenset[str]) -> None:
        pass

    async def lead(self, changed: Callable[[], None], trusted: Callable[[], bool]) -> None:
        await asyncio.Event().wait()
