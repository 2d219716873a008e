"""Redis servers for the tests: a local redis-server that can be killed and brought back, and one in a container."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import redis

START_S = 20.0
PATIENCE_S = 20.0

_libc = ctypes.CDLL(None)


def _die_with_the_tests() -> None:
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


class LocalRedis:
    """A redis-server on a unix socket with an append-only file. ``start`` after ``kill`` has the data again."""

    def __init__(self, folder: Path, *arguments: str, appendfsync: str = "always") -> None:
        self.folder = folder
        self.url = f"unix://{folder / 'redis.sock'}"
        self._arguments = (
            *("--port", "0", "--unixsocket", str(folder / "redis.sock"), "--dir", str(folder), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", appendfsync, "--logfile", str(folder / "redis.log")),
            *arguments,
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed"
        self._process = subprocess.Popen([binary, *self._arguments], preexec_fn=_die_with_the_tests)
        wait_until_it_answers(self.url)

    def kill(self) -> None:
        """SIGKILL: what is not in the append-only file is lost."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        (self.folder / "redis.sock").unlink(missing_ok=True)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def empty(self) -> None:
        """While it is down: its next start knows nothing."""
        for name in ("appendonlydir", "appendonly.aof", "dump.rdb"):
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def local_redis(*arguments: str, appendfsync: str = "always") -> Iterator[LocalRedis]:
    """Started, and gone at the end. Its folder's name is short: a unix socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="rw") as folder:
        server = LocalRedis(Path(folder), *arguments, appendfsync=appendfsync)
        try:
            server.start()
            yield server
        finally:
            server.close()


@contextlib.contextmanager
def container_redis(image: str) -> Iterator[str]:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(image).with_exposed_ports(6379).with_command("--appendonly yes")
    with container:
        url = f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"
        wait_until_it_answers(url)
        yield url


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Clients made meanwhile wait for Redis for as long as a machine may be busy with other tests. The product's own
    seconds are for who holds a client's request; tests of those seconds make their clients without this."""
    with (
        mock.patch("fleet.client.CONNECT_TIMEOUT_S", PATIENCE_S),
        mock.patch("fleet.client.COMMAND_TIMEOUT_S", PATIENCE_S),
    ):
        yield


def wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + START_S
    with redis.Redis.from_url(url, socket_timeout=2) as client:
        while True:
            try:
                client.ping()
                return
            except (redis.RedisError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
