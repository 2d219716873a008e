"""Containers of the images under test, run as the manifests run them: no rights, a read-only root, the image's user."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AS_IN_THE_CLUSTER = (
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp",
    "--tmpfs=/var/lib/rewarm:mode=0777",  # an emptyDir
)


def docker(*arguments: str, timeout_s: float = 60, check: bool = True) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr}{done.stdout}")
    return done.stdout + (done.stderr if not check else "")


def inspect(image: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker("image", "inspect", image))[0]
    return found


@contextmanager
def running(image: str, *command: str, options: tuple[str, ...] = ()) -> Iterator[str]:
    """A container on the host's network; removed at the end, its log shown if something went wrong."""
    name = f"rewarm-test-{uuid.uuid4().hex[:8]}"
    docker("run", "--detach", "--name", name, "--network=host", *options, image, *command)
    try:
        yield name
    except BaseException:
        print(f"--- {name} ({image})\n{docker('logs', name, check=False)[-8000:]}")  # noqa: T201 -- for pytest's report
        raise
    finally:
        docker("rm", "--force", "--volumes", name)


def stop(name: str, within_s: int) -> int:
    """SIGTERM, and its exit code; 137 where it had to be killed."""
    docker("stop", "--time", str(within_s), name, timeout_s=within_s + 30)
    return int(docker("inspect", "--format", "{{.State.ExitCode}}", name))


def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.1)


def call(url: str, body: dict[str, Any] | None = None, *, key: str = "", timeout_s: float = 60) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=timeout_s) as answer:  # noqa: S310 -- our own gateway
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
