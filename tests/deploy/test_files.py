"""What is shipped for other programs' sake is sound by their own word: systemd's, Docker's, ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rewarm.config import load
from tests.e2e.stack import ROOT

DEPLOY = ROOT / "deploy"


def test_the_unit_is_sound(tmp_path: Path) -> None:
    binary = shutil.which("systemd-analyze")
    assert binary, "systemd is not installed"
    # The program that it starts, and its user, are of another machine.
    text = (DEPLOY / "systemd" / "rewarm.service").read_text()
    text = text.replace("/opt/rewarm/bin/rewarm", "/bin/true").replace("=rewarm\nGroup=rewarm", "=root\nGroup=root")
    unit = tmp_path / "rewarm.service"
    unit.write_text(text)
    done = subprocess.run([binary, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "rewarm" in line] == []


def test_the_unit_leaves_a_drain_its_time() -> None:
    """Else systemd kills what rewarm still lets finish."""
    found = re.search(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "systemd" / "rewarm.service").read_text(), re.MULTILINE)
    assert found is not None
    config = load(ROOT / "examples" / "quickstart.yaml")
    for deadline in (config.gateway.shutdown_deadline, config.worker.shutdown_deadline):
        assert int(found[1]) > deadline.total_seconds()


@pytest.fixture
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    return found


def test_compose_names_what_there_is(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        build = service.get("build")
        if build:
            assert (DEPLOY / "compose" / build["context"] / build["dockerfile"]).resolve().is_file()
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / "compose" / source).is_file()
            elif not source.startswith("$"):
                assert source in compose["volumes"]
        assert set(service.get("depends_on", ())) <= compose["services"].keys()
        grace = service.get("stop_grace_period")
        assert grace is None or int(grace.removesuffix("s")) > 300


def test_compose_s_containers_find_each_other(compose: dict[str, Any]) -> None:
    config = load(DEPLOY / "compose" / "config.yaml")
    services = compose["services"]
    assert config.redis.url == "redis://redis:6379/0"
    assert config.worker.advertise == "worker"
    assert {"redis", "worker"} <= services.keys()
    assert services["gateway"]["ports"] == [f"127.0.0.1:{config.gateway.port}:{config.gateway.port}"]
    for name in ("gateway", "worker"):
        assert config.secret_env in services[name]["environment"]
    assert "noeviction" in services["redis"]["command"]


def test_docker_compose_takes_it(compose: dict[str, Any]) -> None:
    """By Docker's own word, where its plugin is installed; the other tests hold everywhere."""
    file = DEPLOY / "compose" / "compose.yaml"
    probe = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if probe.returncode != 0:
        return
    done = subprocess.run(
        ["docker", "compose", "--file", str(file), "config", "--quiet"],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "REWARM_FLEET_SECRET": "x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
