"""The images of ``deploy/images``: small enough, without rights, and a fleet of them answers a request."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path

import pytest

from rewarm.knative import names
from tests.images.containers import AS_IN_THE_CLUSTER, call, docker, inspect, running, stop, until

ROOT = Path(__file__).resolve().parents[2]
GATEWAY, WORKER = "rewarm-gateway:test", "rewarm-worker-cpu:test"
BUILT = [f"rewarm-{name}:test" for name in os.environ.get("REWARM_TEST_IMAGES", "").split()]
MOST_GATEWAY_BYTES = 150_000_000
KEY = "a-key-of-the-test"

CONFIG = """
models:
  chat:
    engine: command
    cmd: python3 /opt/engine/fake_engine.py --port ${{PORT}}
    memory: 64MiB
    slots: 2
worker: {{memory: 256MiB, shutdown_deadline: 10s}}
gateway: {{shutdown_deadline: 10s, listen: 127.0.0.1:{port}}}
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


def test_a_fleet_of_containers_answers_a_request_and_ends_in_order(tmp_path: Path) -> None:
    redis_port, port, place_port = free_port(), free_port(), free_port()
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    tmp_path.chmod(0o755)
    (tmp_path / "config.yaml").write_text(CONFIG.format(port=port, digest=digest))
    fleet = (
        *AS_IN_THE_CLUSTER,
        f"--env={names.ENV_REDIS_URL}=redis://127.0.0.1:{redis_port}/0",
        "--env=REWARM_FLEET_SECRET=a-secret-of-the-test",
        f"--volume={tmp_path}:/srv/rewarm:ro",
    )
    pod = (f"--env={names.ENV_PLACE}=model-chat-0", f"--env={names.ENV_ADDRESS}=127.0.0.1", f"--env=PORT={place_port}")
    engine = f"--volume={ROOT / 'tests' / 'programs'}:/opt/engine:ro"
    url = f"http://127.0.0.1:{port}"
    with (
        running("rewarm-test-redis:local", "--port", str(redis_port), options=("--tmpfs=/data",)),
        running(GATEWAY, options=fleet) as gateway,
        running(WORKER, options=(*fleet, *pod, engine)) as worker,
    ):
        until(lambda: call(f"{url}/ready")[0] == 200, 60, "the gateway is ready")
        body = {"model": "chat", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
        status, text = call(f"{url}/v1/chat/completions", body, key=KEY)
        assert status == 200, text
        assert "Paris" in json.loads(text)["choices"][0]["message"]["content"]
        assert call(f"http://127.0.0.1:{place_port}{names.READY_PATH}")[0] == 200
        assert stop(worker, 30) == 0
        assert stop(gateway, 30) == 0
