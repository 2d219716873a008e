"""An API server of lists, watches and scales, with what goes wrong with real ones: watches that drop, versions that are
too old (410), conflicts (409), too many requests (429), rights that are missing (403)."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.e2e.stack import free_port

NAMESPACE = "rewarm"
Json = dict[str, Any]
_API = {
    "services": "serving.knative.dev/v1",
    "revisions": "serving.knative.dev/v1",
    "podautoscalers": "autoscaling.internal.knative.dev/v1alpha1",
    "deployments": "apps/v1",
    "pods": "v1",
    "events": "v1",
}


@dataclass
class Watcher:
    plural: str
    selector: dict[str, str]
    queue: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)  # None: end
    task: asyncio.Task[Any] | None = None


@dataclass
class ApiServer:
    """``objects`` by plural and name. Written through :meth:`put` and :meth:`delete`, which the watches see."""

    objects: dict[str, dict[str, Json]] = field(default_factory=lambda: {plural: {} for plural in _API})
    refuse: dict[str, int] = field(default_factory=dict)  # plural → status of every answer
    refused: set[str] = field(default_factory=set)  # plurals that were asked for in vain
    busy: dict[str, int] = field(default_factory=dict)  # plural → so many answers are 429
    conflicts: int = 0  # so many patches are
    short_watches: bool = False  # every watch ends in good order as soon as it has begun
    asked: list[str] = field(default_factory=list)  # "GET pods", "WATCH pods 17", "PATCH deployments x"
    version: int = 100
    _history: list[tuple[int, str, str, Json]] = field(default_factory=list)
    _oldest: int = 100
    _watchers: list[Watcher] = field(default_factory=list)
    url: str = ""
    scaled: asyncio.Event = field(default_factory=asyncio.Event)

    # --- the test's side ---------------------------------------------------------------------------------------------

    def put(self, plural: str, name: str, thing: Json) -> None:
        self.version += 1
        known = name in self.objects[plural]
        made = copy.deepcopy(thing)
        made.setdefault("metadata", {}).update(name=name, namespace=NAMESPACE, resourceVersion=str(self.version))
        self.objects[plural][name] = made
        self._tell("MODIFIED" if known else "ADDED", plural, made)

    def change(self, plural: str, name: str, **status: Any) -> None:
        """Some fields of its status."""
        thing = copy.deepcopy(self.objects[plural][name])
        thing.setdefault("status", {}).update(status)
        self.put(plural, name, thing)

    def delete(self, plural: str, name: str) -> None:
        thing = self.objects[plural].pop(name, None)
        if thing is not None:
            self.version += 1
            thing["metadata"]["resourceVersion"] = str(self.version)
            self._tell("DELETED", plural, thing)

    def forget_history(self) -> None:
        """Whoever watches on from an older version than this gets a 410."""
        self._history.clear()
        self._oldest = self.version

    def drop_watches(self, *, torn: bool = False) -> None:
        """Every watch ends, as when an API server restarts. ``torn``: in the middle of it, without an end."""
        for watcher in list(self._watchers):
            if torn and watcher.task is not None:
                watcher.task.cancel()
            watcher.queue.put_nowait(None)

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        cluster = {"clusters": [{"name": "fake", "cluster": {"server": self.url}}]}
        context = {"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": NAMESPACE}}
        users = [{"name": "fake", "user": {"token": "t"}}]
        path.write_text(yaml.safe_dump({**cluster, "users": users, "contexts": [context], "current-context": "fake"}))
        return path

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[ApiServer]:
        app = web.Application()
        for prefix in ("/api/{version}", "/apis/{group}/{version}"):
            base = f"{prefix}/namespaces/{NAMESPACE}/{{plural}}"
            app.router.add_get(base, self._get)
            app.router.add_patch(f"{base}/{{name}}/scale", self._patch_scale)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            self.drop_watches()
            await runner.cleanup()

    # --- the client's side -------------------------------------------------------------------------------------------

    def _refusal(self, plural: str) -> web.Response | None:
        if plural in self.refuse:
            self.refused.add(plural)
            code = self.refuse[plural]
            reason = {403: "Forbidden", 404: "NotFound"}.get(code, "InternalError")
            return _status(code, reason, f'{plural} is forbidden: User "gateway" cannot list resource "{plural}"')
        if self.busy.get(plural, 0) > 0:
            self.busy[plural] -= 1
            return _status(429, "TooManyRequests", "too many requests", {"Retry-After": "1"})
        return None

    async def _get(self, request: web.Request) -> web.StreamResponse:
        plural = request.match_info["plural"]
        if (refusal := self._refusal(plural)) is not None:
            return refusal
        selector = dict(part.split("=") for part in request.query.get("labelSelector", "").split(",") if part)
        if request.query.get("watch") == "true":
            return await self._watch(request, plural, selector)
        self.asked.append(f"GET {plural}")
        items = [thing for thing in self.objects[plural].values() if _matches(thing, selector)]
        return web.json_response({"items": items, "metadata": {"resourceVersion": str(self.version)}})

    async def _watch(self, request: web.Request, plural: str, selector: dict[str, str]) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion", self.version))
        self.asked.append(f"WATCH {plural} {since}")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since < self._oldest:
            gone = _status_body(410, "Expired", f"too old resource version: {since} ({self._oldest})")
            await response.write(_line("ERROR", gone))
            await response.write_eof()
            return response
        watcher = Watcher(plural, selector, task=asyncio.current_task())
        for version, changed, kind, thing in self._history:
            if version > since and changed == plural and _matches(thing, selector):
                watcher.queue.put_nowait(_line(kind, thing))
        if self.short_watches:
            watcher.queue.put_nowait(None)
        self._watchers.append(watcher)
        try:
            while (line := await watcher.queue.get()) is not None:
                await response.write(line)
            await response.write_eof()
        finally:
            self._watchers.remove(watcher)
        return response

    async def _patch_scale(self, request: web.Request) -> web.Response:
        plural, name = request.match_info["plural"], request.match_info["name"]
        self.asked.append(f"PATCH {plural} {name}")
        if (refusal := self._refusal(f"{plural}/scale")) is not None:
            return refusal
        if self.conflicts:
            self.conflicts -= 1
            return _status(409, "Conflict", "the object has been modified")
        if name not in self.objects[plural]:
            return _status(404, "NotFound", f'{plural} "{name}" not found')
        wanted = json.loads(await request.read())["spec"]["replicas"]
        thing = copy.deepcopy(self.objects[plural][name])
        thing.setdefault("spec", {})["replicas"] = wanted
        self.put(plural, name, thing)
        self.scaled.set()
        metadata = {"name": name, "namespace": NAMESPACE}
        return web.json_response({"kind": "Scale", "metadata": metadata, "spec": {"replicas": wanted}})

    def _tell(self, kind: str, plural: str, thing: Json) -> None:
        self._history.append((self.version, plural, kind, thing))
        for watcher in self._watchers:
            if watcher.plural == plural and _matches(thing, watcher.selector):
                watcher.queue.put_nowait(_line(kind, thing))


def _matches(thing: Json, selector: dict[str, str]) -> bool:
    labels = thing.get("metadata", {}).get("labels") or {}
    return all(labels.get(name) == value for name, value in selector.items())


def _line(kind: str, thing: Json) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


def _status_body(code: int, reason: str, message: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _status(code: int, reason: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = json.dumps(_status_body(code, reason, message)).encode()
    return web.Response(body=body, status=code, headers={"Content-Type": "application/json", **(headers or {})})
