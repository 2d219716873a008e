"""Knative as it was measured: activator, queue-proxy and autoscaler in front of real worker processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from rewarm.knative import names
from tests.e2e.stack import free_port
from tests.knative.fakes.api import ApiServer
from tests.knative.fakes.pod import Plan, Pod, Start, now, tell
from tests.knative.fakes.timings import (
    ACTIVATOR_TIMEOUT_TEXT,
    QUEUE_FULL_TEXT,
    QUEUED_PER_SLOT,
    TIMEOUT_TEXT,
    Timings,
)


@dataclass
class Revision:
    place: str
    concurrency: int = 0  # containerConcurrency
    plan: Plan = field(default_factory=Plan)
    pod: Pod | None = None
    pods: list[Pod] = field(default_factory=list)  # all that there were
    in_flight: int = 0  # at the activator
    inside: int = 0  # at queue-proxy: running and queued
    busy_at: float = 0.0
    slots: asyncio.Semaphore | None = None
    told: str = ""  # what its conditions say
    cut_off: bool = False  # no request reaches it
    requests: set[asyncio.Task[object]] = field(default_factory=set)  # at the activator

    @property
    def name(self) -> str:
        return f"{self.place}-00001"


@dataclass
class Knative:
    """``start`` runs a pod's worker. Requests reach a place by their Host header, as through the cluster's ingress."""

    api: ApiServer
    start: Start
    timings: Timings = field(default_factory=Timings)
    revisions: dict[str, Revision] = field(default_factory=dict)
    port: int = 0
    seen: list[str] = field(default_factory=list)  # "<host> <path>" of every request
    _http: aiohttp.ClientSession | None = None

    # --- the test's side ---------------------------------------------------------------------------------------------

    def apply(self, place: str, concurrency: int = 0) -> Revision:
        """A Service of that name, at zero. Ready, as Knative says it then."""
        revision = self.revisions[place] = Revision(place, concurrency)
        if concurrency:
            revision.slots = asyncio.Semaphore(concurrency)
        labels = {names.LABEL_APP: names.APP, names.LABEL_COMPONENT: names.COMPONENT_WORKER}
        ready = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now()}]}
        self.api.put("services", place, {"metadata": {"labels": labels}, "status": ready})
        self._conditions(revision, "Active", "False", "NoTraffic", "")
        self._scaler(revision, 0)
        return revision

    def delete_pod(self, place: str) -> Pod:
        """`kubectl delete pod`: it drains, and the next one is made at once."""
        revision = self.revisions[place]
        pod, revision.pod = revision.pod, None
        assert pod is not None
        pod.grace_s = self.timings.timeout_s
        pod.delete()
        return pod

    def cut_off(self, place: str) -> None:
        """The way there is gone, and with it every request that is under way: its ingress restarts, or a policy came.
        Knative sees nobody ask any more, and scales down."""
        self.revisions[place].cut_off = True
        for request in self.revisions[place].requests:
            request.cancel()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Knative]:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._activator)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self.port = free_port()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)
        ) as self._http:
            scaling = asyncio.create_task(self._autoscaler())
            try:
                yield self
            finally:
                scaling.cancel()
                for revision in self.revisions.values():
                    for pod in revision.pods:
                        await pod.kill()
                await runner.cleanup()

    # --- activator ---------------------------------------------------------------------------------------------------

    async def _activator(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(f"{request.host} {request.path}")
        revision = self.revisions.get(request.host.split(".")[0])
        if revision is None:
            return web.Response(status=404)
        if revision.cut_off:
            return web.Response(status=502)
        task = asyncio.current_task()
        assert task is not None
        arrived = asyncio.get_running_loop().time()
        revision.in_flight += 1
        revision.requests.add(task)
        try:
            # Not one byte while it scales from zero, whatever goes wrong there.
            try:
                async with asyncio.timeout_at(arrived + self.timings.response_start_s):
                    pod = await self._ready_pod(revision)
            except TimeoutError:
                return web.Response(status=504, body=ACTIVATOR_TIMEOUT_TEXT)
            return await self._queue_proxy(request, revision, pod, arrived)
        finally:
            revision.in_flight -= 1
            revision.requests.discard(task)
            revision.busy_at = asyncio.get_running_loop().time()

    async def _ready_pod(self, revision: Revision) -> Pod:
        while True:
            pod = revision.pod
            if pod is not None and pod.ready.is_set():
                return pod
            await asyncio.sleep(0.01)

    # --- queue-proxy -------------------------------------------------------------------------------------------------

    async def _queue_proxy(
        self, request: web.Request, revision: Revision, pod: Pod, arrived: float
    ) -> web.StreamResponse:
        pod.last_request_at = asyncio.get_running_loop().time()
        most = revision.concurrency * (1 + QUEUED_PER_SLOT)
        if most and revision.inside >= most:
            return web.Response(status=503, body=QUEUE_FULL_TEXT)
        revision.inside += 1
        try:
            async with asyncio.timeout_at(arrived + self.timings.response_start_s) as starting:
                async with revision.slots or contextlib.nullcontext():
                    return await self._forward(request, pod, arrived, starting)
        except TimeoutError:
            return web.Response(status=504, body=TIMEOUT_TEXT)
        finally:
            revision.inside -= 1

    async def _forward(
        self, request: web.Request, pod: Pod, arrived: float, starting: asyncio.Timeout
    ) -> web.StreamResponse:
        assert self._http is not None
        url = f"http://127.0.0.1:{pod.port}{request.path_qs}"
        try:
            upstream = await self._http.request(request.method, url, data=await request.read())
        except (aiohttp.ClientError, OSError):
            return web.Response(status=502)
        starting.reschedule(None)  # headers disarm the first limit
        async with upstream:
            response = web.StreamResponse(status=upstream.status)
            await response.prepare(request)
            try:
                async with asyncio.timeout_at(arrived + self.timings.timeout_s):
                    while chunk := await upstream.content.readany():
                        await response.write(chunk)
            except TimeoutError:
                # A clean end, with a text that nobody asked for.
                await response.write(TIMEOUT_TEXT)
            except aiohttp.ClientError:
                assert request.transport is not None
                request.transport.abort()  # an incomplete chunked body
                return response
            await response.write_eof()
            return response

    # --- autoscaler --------------------------------------------------------------------------------------------------

    async def _autoscaler(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.02)
            for revision in self.revisions.values():
                if revision.in_flight and revision.pod is None:
                    self._scale_up(revision)
                idle = not revision.in_flight and loop.time() - revision.busy_at > self.timings.window_s
                if idle and revision.pod is not None:
                    pod, revision.pod = revision.pod, None
                    pod.delete()
                    self._scaler(revision, 0)
                    self._conditions(revision, "Active", "False", "NoTraffic", "The target is not receiving traffic.")
                self._reconcile(revision)

    def _scale_up(self, revision: Revision) -> None:
        self._scaler(revision, 1)
        owner = f"{revision.name}-deployment"
        if revision.plan.quota:
            if revision.told != "quota":
                revision.told = "quota"
                tell(self.api, f"{owner}-6f7d8c9b5", "FailedCreate", revision.plan.quota, "Warning")
            return
        labels = {names.LABEL_KNATIVE_SERVICE: revision.place, names.LABEL_KNATIVE_REVISION: revision.name}
        grace_s = self.timings.timeout_s
        pod = Pod(
            self.api, revision.place, self.start, self.timings, revision.plan, labels, f"{owner}-6f7d8c9b5", grace_s
        )
        revision.pod = pod
        revision.pods.append(pod)
        revision.busy_at = asyncio.get_running_loop().time()
        pod.create()

    def _reconcile(self, revision: Revision) -> None:
        """The Revision's conditions show within about a second why a pod does not come."""
        if revision.pod is None:
            return
        if revision.plan.unschedulable and revision.told != "unschedulable":
            revision.told = "unschedulable"
            self._conditions(revision, "ResourcesAvailable", "False", "Unschedulable", revision.plan.unschedulable)
        elif revision.pod.ready.is_set() and revision.told != "ready":
            revision.told = "ready"
            self._conditions(revision, "Active", "True", "", "")

    def _conditions(self, revision: Revision, kind: str, status: str, reason: str, message: str) -> None:
        made = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now()}  # also at zero
        labels = {names.LABEL_KNATIVE_SERVICE: revision.place}
        self.api.put(
            "revisions", revision.name, {"metadata": {"labels": labels}, "status": {"conditions": [made, ready]}}
        )

    def _scaler(self, revision: Revision, scale: int) -> None:
        labels = {names.LABEL_KNATIVE_SERVICE: revision.place}
        status = {"desiredScale": scale, "actualScale": 0}
        self.api.put("podautoscalers", revision.name, {"metadata": {"labels": labels}, "status": status})
