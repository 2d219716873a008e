"""A Deployment for each place, scaled between 0 and 1 by the leader. Without Knative a swap on one GPU takes no drain
of 30 s, and the pod has a grace period and a preStop hook of its own."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping

from lightkube import AsyncClient
from lightkube.types import PatchType

from controller.backends.cluster import DEPLOYMENT, EVENT, POD, Cluster, Failures, retry_after_s, status_of, words_of
from controller.backends.conditions import Object
from controller.backends.following import FIRST_BACKOFF_S, FORBIDDEN, LONGEST_BACKOFF_S
from controller.backends.pods import PodPlaces
from controller.places import Place
from rewarm.config import KnativeConfig
from rewarm.messages import CatalogueEntry

log = logging.getLogger("rewarm.controller.deployments")

LOOK_EVERY_S = 5.0
"""Without any news: a person may have scaled one."""


class Deployments:
    def __init__(self, config: KnativeConfig) -> None:
        self._cluster = Cluster(config.namespace, DEPLOYMENT, (POD, EVENT))
        self._troubles: dict[str, str] = {}
        self._not_before: dict[str, tuple[float, int]] = {}  # after failures: when again, and how many there were
        self._needed: frozenset[str] | None = None  # None: this leader has not looked yet
        self._look = asyncio.Event()
        self._places = PodPlaces(self._cluster, "Deployment", config, lambda place: self._troubles.get(place, ""))

    @property
    def places(self) -> Mapping[str, Place]:
        return self._places.known

    def configure(self, entries: Mapping[str, CatalogueEntry]) -> None:
        self._places.configure(entries)

    def need(self, places: frozenset[str]) -> None:
        self._places.need(places)
        if places != self._needed:
            self._needed = places
            self._look.set()

    async def lead(self, changed: Callable[[], None], trusted: Callable[[], bool]) -> None:
        def seen() -> None:
            self._look.set()
            if self._places.news():
                changed()

        self._cluster.changed = seen
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._cluster.run(), name="cluster")
                group.create_task(self._scale(trusted), name="scale")
        finally:
            self._needed = None

    async def _scale(self, trusted: Callable[[], bool]) -> None:
        while True:
            self._look.clear()
            for place, wanted in self._differences():
                if trusted() and self._cluster.client is not None:
                    await self._set(self._cluster.client, place, wanted)
            try:
                async with asyncio.timeout(min(LOOK_EVERY_S, self._soonest_s())):
                    await self._look.wait()
            except TimeoutError:
                pass

    def _differences(self) -> list[tuple[str, int]]:
        """Deployments of workers that are not scaled as they should be, those of removed models included; pods that
        nobody needs first, because another one may wait for their room."""
        if self._needed is None:
            return []
        now = asyncio.get_running_loop().time()
        wanted = {place: int(place in self._needed) for place in self._cluster.targets()}
        return sorted(
            (
                (place, wanted[place])
                for place, target in self._cluster.targets().items()
                if _replicas(target) != wanted[place] and self._not_before.get(place, (0.0, 0))[0] <= now
            ),
            key=lambda difference: (difference[1], difference[0]),
        )

    def _soonest_s(self) -> float:
        now = asyncio.get_running_loop().time()
        return max(0.05, min((at - now for at, _ in self._not_before.values()), default=LOOK_EVERY_S))

    async def _set(self, client: AsyncClient, place: str, replicas: int) -> None:
        try:
            async with asyncio.timeout(10):
                await client.patch(
                    DEPLOYMENT.resource.Scale, place, {"spec": {"replicas": replicas}}, patch_type=PatchType.MERGE
                )
        except Failures as error:
            self._failed(place, replicas, error)
            return
        log.info("scaled place=%s replicas=%d", place, replicas)
        self._troubles.pop(place, None)
        # The watch shows it in a moment; until then it is not asked for again.
        self._not_before[place] = (asyncio.get_running_loop().time() + FIRST_BACKOFF_S, 0)

    def _failed(self, place: str, replicas: int, error: BaseException) -> None:
        """A conflict (409) is decided again on what the watch then shows, like everything else."""
        _, failures = self._not_before.get(place, (0.0, 0))
        wait_s = min(FIRST_BACKOFF_S * 2**failures, LONGEST_BACKOFF_S) * (0.5 + random.random())
        status = status_of(error)
        if (asked_s := retry_after_s(error)) is not None:
            wait_s = asked_s
        self._not_before[place] = (asyncio.get_running_loop().time() + wait_s, failures + 1)
        self._troubles[place] = f"it cannot be scaled to {replicas}: {words_of(error)}"
        level = logging.ERROR if status == FORBIDDEN else logging.WARNING
        log.log(level, "not scaled place=%s replicas=%d status=%s error=%s", place, replicas, status, words_of(error))


def _replicas(target: Object) -> int:
    """One where the field is not there: Kubernetes's default."""
    return int(target.get("spec", {}).get("replicas", 1))
