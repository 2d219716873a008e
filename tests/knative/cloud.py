"""A fleet in a cluster that is not there: a real gateway, real workers as pods, real Redis; Kubernetes and Knative are
``tests.knative.fakes``. One configuration file for all of them, as in a ConfigMap."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fleet import FleetClient, Registry
from rewarm.knative import names
from rewarm.messages import ReplicaReport
from tests.e2e.stack import Event, Process, Stack, chat, free_port, stream
from tests.knative.fakes.api import ApiServer
from tests.knative.fakes.knative import Knative
from tests.knative.fakes.kubernetes import Kubernetes
from tests.knative.fakes.pod import Pod
from tests.knative.fakes.timings import Timings

SECRET = "s" * 32
FAST = Timings(scale=0.05, timeout=600, response_start=600, window=15)  # 30 s, 30 s, 0.75 s; quiet 1.5 s


@dataclass
class Cloud(Stack):
    timings: Timings = FAST
    sections: dict[str, Any] = field(default_factory=dict)  # of the configuration, beside the models
    api: ApiServer = field(default_factory=ApiServer)
    config_path: Path = Path()
    listen_port: int = field(default_factory=free_port)

    def write_config(self) -> Path:
        knative = {"timeout": f"{self.timings.timeout_s}s", "namespace": "rewarm"}
        data = {
            "fleet": self.fleet,
            "models": self.models,
            "gateway": {"listen": f"127.0.0.1:{self.listen_port}"},
            **self.sections,
            "knative": {**knative, **self.sections.get("knative", {})},
        }
        self.config_path = self.folder / "config.yaml"
        self.config_path.write_text(yaml.safe_dump(data))
        return self.config_path

    async def start_pod(self, pod: Pod) -> asyncio.subprocess.Process:
        """The container of a pod: the worker, with the environment that its manifest gives it."""
        command: tuple[str, ...]
        if pod.plan.crash:
            command = (sys.executable, "-c", f"raise SystemExit({pod.plan.crash})")
        else:
            command = (sys.executable, "-m", "rewarm", "worker", str(self.config_path))
        env = {
            names.ENV_PLACE: pod.place,
            names.ENV_ADDRESS: pod.address,
            "PORT": str(pod.port),
            names.ENV_STATE_HOME: str(self.folder / pod.name),
        }
        process = await self.spawn(pod.name, *command, env={**self._common(), **env})
        return process.popen

    async def start_cluster_gateway(self, backend: str, name: str = "gateway-1") -> Process:
        port = free_port()
        env = {
            names.ENV_BACKEND: backend,
            names.ENV_LISTEN: f"127.0.0.1:{port}",
            names.ENV_STATE_HOME: str(self.folder / f"home-{name}"),
            "KUBECONFIG": str(self.api.kubeconfig(self.folder)),
        }
        command = (sys.executable, "-m", "rewarm", "gateway", str(self.config_path))
        process = await self.spawn(name, *command, port=port, env={**self._common(), **env})
        await self.healthy(process)
        return process

    async def reports(self, model: str) -> list[ReplicaReport]:
        """What the fleet knows of the model's replicas."""
        client = await FleetClient.connect(self.redis_url or "", self.fleet)
        try:
            view = (await Registry(client).snapshot()).with_absent()
        finally:
            await client.close()
        return [report for _, report in view.replicas(model)]

    def _common(self) -> dict[str, str]:
        return {names.ENV_REDIS_URL: self.redis_url or "", "REWARM_FLEET_SECRET": SECRET}


@asynccontextmanager
async def knative(folder: Path, models: dict[str, Any], **more: Any) -> AsyncIterator[tuple[Cloud, Knative]]:
    """A Service applied for each place, all at zero."""
    cloud = Cloud(folder, models, **more)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cloud)
        await cloud.start_redis()
        await stack.enter_async_context(cloud.api.listening())
        fake = Knative(cloud.api, cloud.start_pod, cloud.timings)
        await stack.enter_async_context(fake.listening())
        cloud.sections.setdefault("knative", {})["ingress"] = f"127.0.0.1:{fake.port}"
        cloud.write_config()
        for place in places(models):
            fake.apply(place)
        yield cloud, fake


@asynccontextmanager
async def kubernetes(folder: Path, models: dict[str, Any], **more: Any) -> AsyncIterator[tuple[Cloud, Kubernetes]]:
    """A Deployment applied for each place, with the one pod that a first apply makes."""
    cloud = Cloud(folder, models, **more)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cloud)
        await cloud.start_redis()
        await stack.enter_async_context(cloud.api.listening())
        fake = Kubernetes(cloud.api, cloud.start_pod, cloud.timings)
        cloud.write_config()
        for place in places(models):
            fake.apply(place)
        await stack.enter_async_context(fake.running())
        yield cloud, fake


def places(models: dict[str, Any]) -> list[str]:
    return list(names.by_name(names.places({m: fields.get("max_replicas", 1) for m, fields in models.items()})))


async def ask(gateway: Process, model: str = "chat", **fields: Any) -> list[Event]:
    """A streaming chat request, to its end."""
    return [event async for event in stream(gateway.url, chat(model, "hello", **fields))]


def answered(events: list[Event]) -> bool:
    """It got an answer, whole."""
    return bool(events) and events[-1].line == "data: [DONE]" and not errors(events)


def errors(events: list[Event]) -> list[dict[str, Any]]:
    return [data["error"] for event in events if (data := event.data) and "error" in data]


def comments(events: list[Event]) -> str:
    return "\n".join(event.line for event in events if event.line.startswith(":"))
