"""The images of ``deploy/images``: small enough, without rights, and a fleet of them answers a request."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rewarm.knative import names
from tests.images.containers import AS_IN_THE_CLUSTER, call, docker, inspect, running, stop, until

ROOT = Path(__file__).resolve().parents[2]
GATEWAY, WORKER = "rewarm-gateway:test", "rewarm-worker-cpu:test"
BUILT = [f"rewarm-{name}:test" for name in os.environ.get("REWARM_TEST_IMAGES", "").split()]
MOST_GATEWAY_BYTES = 150_000_000
KEY = "a-key-of-the-test"

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]}

FAKE = """
    engine: command
    cmd: python3 /opt/engine/fake_engine.py --port ${PORT}
    memory: 64MiB
    slots: 2
"""
TORCH = """
    engine: torch
    source: /srv/models/smollm2
    context_length: 1024
    dtype: float32
    slots: 2
"""
CONFIG = """
models:
  chat:{engine}
worker: {{memory: 3GiB, shutdown_deadline: 10s}}
gateway:
  listen: 127.0.0.1:{port}
  shutdown_deadline: 10s
  holding: {{stream_status_after: 0s, comment_every: 0.5s}}
keys: [{{name: test, sha256: "{digest}"}}]
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_gateways_image_is_small() -> None:
    size = inspect(GATEWAY)["Size"]
    assert size <= MOST_GATEWAY_BYTES, f"{size / 1e6:.0f} MB"


@pytest.mark.parametrize("image", BUILT)
def test_an_image_is_nobodys_and_says_how_it_is_started(image: str) -> None:
    config = inspect(image)["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"][-2:] == ["-m", "rewarm"]
    version = docker("run", "--rm", "--network=none", *AS_IN_THE_CLUSTER, image, "--version")
    assert version.startswith("rewarm, version ")


@pytest.mark.parametrize("image", BUILT)
def test_everything_that_is_needed_is_in_it(image: str) -> None:
    """The rooms, every command, the libraries of `rewarm[knative]`, the schemas."""
    code = (
        "import controller, fleet, gateway, worker, lightkube, pkgutil, importlib, rewarm.cli as cli; "
        "[importlib.import_module(f'rewarm.cli.{m.name}') for m in pkgutil.iter_modules(cli.__path__)]; "
        "from rewarm.knative.crds import schema_problems as s; "
        "from rewarm.knative.manifest import Manifest as M; assert list(s(M('', {'kind': 'Service', 'spec': 1})))"
    )
    python = ("--entrypoint=/usr/bin/python3",)
    docker("run", "--rm", "--network=none", *AS_IN_THE_CLUSTER, *python, image, "-P", "-c", code)


@dataclass
class Fleet:
    """A gateway and the worker of one place, each in its container."""

    url: str
    gateway: str
    worker: str
    place_url: str

    def ask(self, **fields: Any) -> tuple[int, str]:
        return call(f"{self.url}/v1/chat/completions", {"model": "chat", **QUESTION, **fields}, key=KEY, timeout_s=240)


@contextmanager
def fleet(folder: Path, engine: str, *volumes: str) -> Iterator[Fleet]:
    redis_port, port, place_port = free_port(), free_port(), free_port()
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    folder.chmod(0o755)
    (folder / "config.yaml").write_text(CONFIG.format(engine=engine.rstrip(), port=port, digest=digest))
    both = (
        *AS_IN_THE_CLUSTER,
        f"--env={names.ENV_REDIS_URL}=redis://127.0.0.1:{redis_port}/0",
        "--env=REWARM_FLEET_SECRET=a-secret-of-the-test",
        f"--volume={folder}:/srv/rewarm:ro",
    )
    pod = (f"--env={names.ENV_PLACE}=model-chat-0", f"--env={names.ENV_ADDRESS}=127.0.0.1", f"--env=PORT={place_port}")
    mounts = tuple(f"--volume={volume}:ro" for volume in volumes)
    url = f"http://127.0.0.1:{port}"
    with (
        running("rewarm-test-redis:local", "--port", str(redis_port), options=("--tmpfs=/data",)),
        running(GATEWAY, options=both) as gateway,
        running(WORKER, options=(*both, *pod, *mounts)) as worker,
    ):
        until(lambda: call(f"{url}/ready")[0] == 200, 60, "the gateway is ready")
        yield Fleet(url, gateway, worker, f"http://127.0.0.1:{place_port}")


def test_a_fleet_of_containers_answers_a_request_and_ends_in_order(tmp_path: Path) -> None:
    with fleet(tmp_path, FAKE, f"{ROOT / 'tests' / 'programs'}:/opt/engine") as containers:
        status, text = containers.ask()
        assert status == 200, text
        assert "Paris" in json.loads(text)["choices"][0]["message"]["content"]
        assert call(f"{containers.place_url}{names.READY_PATH}")[0] == 200
        assert stop(containers.worker, 30) == 0
        assert stop(containers.gateway, 30) == 0


def test_the_engine_in_the_workers_image_answers(tmp_path: Path) -> None:
    """The real one, with real weights: what a client sees of its cold start, and the next answer at once."""
    with fleet(tmp_path, TORCH, f"{ROOT / 'models' / 'smollm2'}:/srv/models/smollm2") as containers:
        status, text = containers.ask(stream=True, temperature=0, max_tokens=24)
        lines = text.splitlines()
        assert (status, lines[-2]) == (200, "data: [DONE]"), text
        assert any(line.startswith(": loading") for line in lines), text
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        (told,) = [c["rewarm"] for c in chunks if "rewarm" in c]
        weights = (ROOT / "models" / "smollm2" / "model.safetensors").stat().st_size
        assert {one["phase"]: one["bytes"] for one in told["phases"]}["restoring"] == weights
        streamed = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
        assert "Paris" in streamed
        status, text = containers.ask(temperature=0, max_tokens=24)
        assert (status, json.loads(text)["choices"][0]["message"]["content"]) == (200, streamed)
        assert stop(containers.worker, 30) == 0
