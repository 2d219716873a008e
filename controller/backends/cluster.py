"""The objects of a cluster that are of use to us, kept as the API server last said them."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import httpx2
import msgspec
from lightkube import AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_namespaced_resource

from controller.backends.conditions import Object, Objects
from controller.backends.following import Following, ended, failed, listed, moved
from controller.backends.watching import OneRequestEach, WatchEnded
from rewarm.errors import ClusterUnavailable
from rewarm.knative.names import LABEL_KNATIVE_SERVICE, LABEL_PLACE, WORKER_SELECTOR

log = logging.getLogger("rewarm.controller.cluster")

WATCH_S = 240
"""A watch is asked for anew after so long, should its connection have died without a word."""

EVENTS_KEPT = 2000


@dataclass(frozen=True, slots=True)
class Kind:
    """``selector``: labels that the objects of interest have."""

    name: str
    resource: Any  # a class of lightkube's whose objects are dictionaries
    selector: dict[str, Any] | None = None


_OURS: dict[str, Any] = dict(part.split("=") for part in WORKER_SELECTOR.split(","))

POD = Kind("pods", create_namespaced_resource("", "v1", "Pod", "pods"), _OURS)
EVENT = Kind("events", create_namespaced_resource("", "v1", "Event", "events"))
DEPLOYMENT = Kind("deployments", create_namespaced_resource("apps", "v1", "Deployment", "deployments"), _OURS)
SERVICE = Kind("services", create_namespaced_resource("serving.knative.dev", "v1", "Service", "services"), _OURS)
REVISION = Kind("revisions", create_namespaced_resource("serving.knative.dev", "v1", "Revision", "revisions"))
AUTOSCALER = Kind(
    "podautoscalers",
    create_namespaced_resource("autoscaling.internal.knative.dev", "v1alpha1", "PodAutoscaler", "podautoscalers"),
)

Failures = (httpx2.HTTPError, httpx2.StreamError, msgspec.MsgspecError, OSError, TimeoutError)

_OWNED = re.compile(r"(\d{5}-deployment.*|[a-z0-9]{5,10}(-[a-z0-9]{5})?)$")
"""What follows a place's name in the names of its ReplicaSets and pods, with Knative and without."""


def configured() -> SingleConfig:
    """The cluster that we run in, or that ``KUBECONFIG`` names. Raise ClusterUnavailable where there is none."""
    try:
        config = KubeConfig.from_env().get()
    except (ConfigError, OSError, KeyError, ValueError) as error:
        raise ClusterUnavailable(f"no cluster is configured: {error}") from error
    if config is None:
        raise ClusterUnavailable("no cluster is configured: the file that KUBECONFIG names has no current context")
    return config


def connect(namespace: str) -> AsyncClient:
    config = configured()
    return AsyncClient(config, namespace=namespace, trust_env=False, transport=OneRequestEach.to(config))


class Cluster:
    """``target`` is the kind that a place is."""

    def __init__(self, namespace: str, target: Kind, others: Sequence[Kind]) -> None:
        self._namespace = namespace
        self._target = target
        self._kinds = (target, *others)
        self._objects: dict[str, dict[str, Object]] = {kind.name: {} for kind in self._kinds}
        self._following: dict[str, Following] = {kind.name: Following() for kind in self._kinds}
        self.changed: Callable[[], None] = lambda: None
        self.client: AsyncClient | None = None

    async def run(self) -> None:
        """Until cancelled. What was seen is kept for the next run, and replaced by its first lists."""
        self.client = connect(self._namespace)
        try:
            async with asyncio.TaskGroup() as group:
                for kind in self._kinds:
                    group.create_task(self._follow(self.client, kind), name=f"watch-{kind.name}")
        finally:
            client, self.client = self.client, None
            await client.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    def of(self, place: str) -> Objects:
        """Everything that is known of one place. A target that cannot be seen is taken to be there."""
        pods = [pod for pod in self._of(POD) if _label(pod, LABEL_PLACE) == place]
        names = {_name(pod) for pod in pods}
        known = self._objects[self._target.name].get(place)
        return Objects(
            target=known if known is not None or self._sees(self._target) else {},
            revisions=[r for r in self._of(REVISION) if _label(r, LABEL_KNATIVE_SERVICE) == place],
            autoscalers=[a for a in self._of(AUTOSCALER) if _label(a, LABEL_KNATIVE_SERVICE) == place],
            pods=pods,
            events=[event for event in self._of(EVENT) if _about(event, place, names)],
        )

    def occupied(self) -> set[str]:
        """Places with a pod that has a node."""
        return {_label(pod, LABEL_PLACE) for pod in self._of(POD) if pod.get("spec", {}).get("nodeName")}

    def targets(self) -> Mapping[str, Object]:
        return self._objects[self._target.name]

    @property
    def blind(self) -> str:
        """Why something cannot be seen, for a person; empty where all can."""
        return "; ".join(f.refused for f in self._following.values() if f.refused)

    def _of(self, kind: Kind) -> Sequence[Object]:
        return list(self._objects.get(kind.name, {}).values())

    def _sees(self, kind: Kind) -> bool:
        return bool(self._following[kind.name].version)

    # --- following ---------------------------------------------------------------------------------------------------

    async def _follow(self, client: AsyncClient, kind: Kind) -> None:
        self._following[kind.name] = Following()
        while True:
            following = self._following[kind.name]
            if following.wait_s:
                await asyncio.sleep(following.wait_s)
            try:
                if not following.version:
                    await self._list(client, kind)
                await self._watch(client, kind)
            except Failures as error:
                self._failed(kind, error)

    async def _list(self, client: AsyncClient, kind: Kind) -> None:
        listing = client.list(kind.resource, labels=kind.selector)
        found = {_name(thing): thing async for thing in listing}
        self._objects[kind.name] = dict(found)
        self._following[kind.name] = listed(self._following[kind.name], listing.resourceVersion)
        self.changed()

    async def _watch(self, client: AsyncClient, kind: Kind) -> None:
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(WATCH_S) as limit:
                await self._read_watch(client, kind)
        except WatchEnded:
            pass
        except TimeoutError:
            if not limit.expired():
                raise
        lasted_s = asyncio.get_running_loop().time() - began_s
        now = self._following[kind.name] = ended(self._following[kind.name], lasted_s, random.random())
        log.debug("watch ended kind=%s lasted_s=%.1f wait_s=%.1f", kind.name, lasted_s, now.wait_s)

    async def _read_watch(self, client: AsyncClient, kind: Kind) -> None:
        watch = client.watch(
            kind.resource,
            labels=kind.selector,
            server_timeout=WATCH_S,
            resource_version=self._following[kind.name].version,
        )
        async with aclosing(cast(AsyncGenerator[tuple[str, Any]], watch)) as changes:
            async for change, thing in changes:
                version = thing.get("metadata", {}).get("resourceVersion", "")
                self._following[kind.name] = moved(self._following[kind.name], version)
                if change == "BOOKMARK":
                    continue
                if change == "DELETED":
                    self._objects[kind.name].pop(_name(thing), None)
                else:
                    self._keep(kind, thing)
                self.changed()

    def _keep(self, kind: Kind, thing: Object) -> None:
        known = self._objects[kind.name]
        known.pop(_name(thing), None)  # the last one to change is the last one
        known[_name(thing)] = thing
        if kind is EVENT and len(known) > EVENTS_KEPT:
            del known[next(iter(known))]

    def _failed(self, kind: Kind, error: BaseException) -> None:
        status = status_of(error)
        before = self._following[kind.name]
        message = f"{kind.name} cannot be seen: {words_of(error)}"
        now = failed(before, status, message, retry_after_s=retry_after_s(error), jitter=random.random())
        self._following[kind.name] = now
        if now.refused != before.refused:
            log.error("watch refused kind=%s status=%s error=%s", kind.name, status, words_of(error))
            self.changed()
        else:
            log.info(
                "watch broken kind=%s status=%s wait_s=%.1f error=%s", kind.name, status, now.wait_s, words_of(error)
            )


def status_of(error: BaseException) -> int | None:
    """The API server's status code, of an answer or of an error event in a watch."""
    if isinstance(error, ApiError) and error.status.code:
        return int(error.status.code)
    response = _response(error)
    return None if response is None else int(response.status_code)


def words_of(error: BaseException) -> str:
    """What the API server says, without our own client's words and addresses: clients are told it."""
    if isinstance(error, ApiError):
        return " ".join(str(error.status.message or error.status.reason or "refused").split())
    response = _response(error)
    if response is not None:
        return f"the API server answers {response.status_code}"
    return f"the API server cannot be asked ({type(error).__name__})"


def retry_after_s(error: BaseException) -> float | None:
    response = _response(error)
    text = "" if response is None else response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None


def _response(error: BaseException) -> httpx2.Response | None:
    return error.response if isinstance(error, httpx2.HTTPStatusError) else None


def _name(thing: Mapping[str, Any]) -> str:
    return str(thing.get("metadata", {}).get("name", ""))


def _label(thing: Object, label: str) -> str:
    return str((thing.get("metadata", {}).get("labels") or {}).get(label, ""))


def _about(event: Object, place: str, pods: set[str]) -> bool:
    about = str(event.get("involvedObject", {}).get("name", ""))
    if about in pods or about == place:
        return True
    return about.startswith(f"{place}-") and _OWNED.match(about[len(place) + 1 :]) is not None
