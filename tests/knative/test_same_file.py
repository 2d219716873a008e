"""One file, byte for byte: `rewarm serve` on a machine, Knative Services, Deployments.

In the cluster everybody runs with the environment that the manifests give: workers as rendered, the gateway as in
``deploy/knative``. Only what a machine cannot have in a test (ports, folders, addresses) is other than there.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from rewarm.knative import names
from rewarm.knative.manifest import Manifest
from rewarm.knative.render import Backend, render
from tests.e2e.stack import Process, Stack, chat, fake, free_port, post, text_of
from tests.knative.cloud import SECRET, Cloud
from tests.knative.fakes.knative import Knative
from tests.knative.fakes.kubernetes import Kubernetes
from tests.knative.fakes.pod import Pod
from tests.knative.kustomize import build

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.timeout(300)]

OVERLAYS = Path(__file__).resolve().parents[2] / "deploy" / "knative" / "overlays"
KEY = "a-key-of-the-test"
MODELS = ("chat", "code", "embed")


@dataclass
class Rendered(Cloud):
    """Pods as the manifests say."""

    backend: Backend = "knative"
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)  # place → its manifest

    async def start_pod(self, pod: Pod) -> asyncio.subprocess.Process:
        env = dict(self.environment(Manifest("", self.pods[pod.place])))
        env |= {
            names.ENV_STATE_HOME: str(self.folder / pod.name),
            names.ENV_ADDRESS: pod.address,
            "PORT": str(pod.port),
        }
        command = (sys.executable, "-m", "rewarm", "worker", str(self.config_path))
        return (await self.spawn(pod.name, *command, env=env)).popen

    async def start_gateway_as_deployed(self) -> Process:
        overlay = "deployments" if self.backend == "deployment" else "single-gpu-node"
        found = [one for one in build(OVERLAYS / overlay) if one["kind"] == "Deployment"]
        (manifest,) = [one for one in found if one["metadata"]["name"] == names.GATEWAY]
        port = free_port()
        env = dict(self.environment(Manifest("", manifest)))
        env |= {names.ENV_LISTEN: f"127.0.0.1:{port}", names.ENV_STATE_HOME: str(self.folder / "home")}
        env["KUBECONFIG"] = str(self.api.kubeconfig(self.folder))
        command = (sys.executable, "-m", "rewarm", "gateway", str(self.config_path))
        process = await self.spawn("gateway", *command, port=port, env=env)
        await self.healthy(process)
        return process

    def environment(self, manifest: Manifest) -> Iterator[tuple[str, str]]:
        secrets = {names.SECRET_REDIS_KEY: self.redis_url or "", names.SECRET_FLEET_KEY: SECRET}
        ((_, container),) = manifest.containers()
        for variable in container["env"]:
            source = variable.get("valueFrom", {})
            if "secretKeyRef" in source:
                yield variable["name"], secrets[source["secretKeyRef"]["key"]]
            elif not source and variable["name"] != "HOME":
                yield variable["name"], variable["value"]


def write(folder: Path, ingress: int) -> Path:
    file = folder / "config.yaml"
    data = {
        "models": {name: {**fake(), "upstream_model": f"served-{name}"} for name in MODELS},
        "keys": [{"name": "test", "sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "gateway": {"listen": f"127.0.0.1:{free_port()}"},
        "knative": {"ingress": f"127.0.0.1:{ingress}"},
    }
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return file


async def answers(gateway: Process) -> dict[str, str]:
    """What each model says, all asked at once."""
    headers = {"Authorization": f"Bearer {KEY}"}
    told = await asyncio.gather(*(post(gateway.url, chat(name, f"this is {name}"), headers) for name in MODELS))
    assert [status for status, _, _ in told] == [200] * len(MODELS), [body for _, body, _ in told]
    return {name: text_of(body) for name, (_, body, _) in zip(MODELS, told, strict=True)}


async def served(folder: Path, file: Path) -> dict[str, str]:
    async with Stack(folder, {}) as stack:
        port = int(yaml.safe_load(file.read_text())["gateway"]["listen"].rpartition(":")[2])
        command = (sys.executable, "-m", "rewarm", "serve", str(file))
        serve = await stack.spawn("serve", *command, port=port, env={names.ENV_STATE_HOME: str(folder / "home")})
        await stack.healthy(serve)
        told = await answers(serve)
        assert await serve.terminate() == 0
        return told


@asynccontextmanager
async def cluster(folder: Path, backend: Backend) -> Any:
    """A cluster with nothing applied yet, and its ingress's port."""
    cloud = Rendered(folder, {}, fleet="rewarm", backend=backend)
    async with cloud:
        await cloud.start_redis()
        async with cloud.api.listening():
            if backend == "knative":
                knative = Knative(cloud.api, cloud.start_pod, cloud.timings)
                async with knative.listening():
                    yield cloud, knative.apply, knative.port
            else:
                kubernetes = Kubernetes(cloud.api, cloud.start_pod, cloud.timings)
                async with kubernetes.running():
                    yield cloud, kubernetes.apply, 1


@pytest.mark.parametrize("backend", ["knative", "deployment"])
async def test_the_same_file_serves_a_machine_and_a_cluster(tmp_path: Path, backend: Backend) -> None:
    async with cluster(tmp_path / "cluster", backend) as (cloud, apply, ingress):
        file = write(tmp_path, ingress)
        before = file.read_bytes()
        on_a_machine = await served(tmp_path / "machine", file)

        cloud.config_path = file
        rendered = render(file.read_text(encoding="utf-8"), backend)
        assert rendered["configmap.yaml"]["data"][names.CONFIG_KEY].encode() == before
        cloud.pods = {one["metadata"]["name"]: one for one in rendered.values() if one["kind"] != "ConfigMap"}
        for place in cloud.pods:
            apply(place)
        gateway = await cloud.start_gateway_as_deployed()
        assert await answers(gateway) == on_a_machine
        assert file.read_bytes() == before
