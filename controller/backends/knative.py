"""A Knative Service for each place. A wake-up request that the leader holds open keeps its pod; without one, Knative
takes it away. No request of a user ever waits there: gateways hold those, and send them to the pod's own gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from controller.backends.cluster import AUTOSCALER, EVENT, POD, REVISION, SERVICE, Cluster
from controller.backends.holds import Holds
from controller.backends.pods import PodPlaces
from controller.backends.wakeup import Limits
from controller.places import Place
from rewarm.config import KnativeConfig
from rewarm.knative.names import hold_url
from rewarm.messages import CatalogueEntry


class KnativeServices:
    def __init__(self, config: KnativeConfig) -> None:
        self._config = config
        self._cluster = Cluster(config.namespace, SERVICE, (POD, REVISION, AUTOSCALER, EVENT))
        limits = Limits(config.response_start_or_timeout.total_seconds(), config.timeout.total_seconds())
        self._holds = Holds(self._address, limits)
        self._places = PodPlaces(self._cluster, "Knative Service", config, self._holds.trouble)

    @property
    def places(self) -> Mapping[str, Place]:
        return self._places.known

    def configure(self, entries: Mapping[str, CatalogueEntry]) -> None:
        self._places.configure(entries)

    def need(self, places: frozenset[str]) -> None:
        self._places.need(places)
        self._holds.need(places)

    async def lead(self, changed: Callable[[], None], trusted: Callable[[], bool]) -> None:
        """Nothing is written to the cluster: a hold of a leader that was cut off ends with its process."""
        self._cluster.changed = lambda: changed() if self._places.news() else None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.run(), name="cluster")
            group.create_task(self._holds.run(), name="holds")

    def _address(self, place: str) -> tuple[str, str]:
        url = hold_url(place, self._config.namespace, self._config.cluster_domain)
        host = urlsplit(url).netloc
        return (url.replace(host, self._config.ingress, 1) if self._config.ingress else url), host
