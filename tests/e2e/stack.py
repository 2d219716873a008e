"""A whole fleet of real processes for a test: Redis, gateways, workers, engines; started, watched, killed by pid.

    async with Stack(tmp_path, models={...}) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway()
        worker = await stack.start_worker()

Everything a test waits for is a condition with a deadline (:func:`until`); nothing sleeps for a guessed time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

from gateway import TOKEN_HEADER, token_path
from rewarm.paths import Paths

ROOT = Path(__file__).resolve().parents[2]
FAKE_ENGINE = ROOT / "tests" / "programs" / "fake_engine.py"

_NOBODYS = ("-" * 128,)  # of a process of the pool, which belongs to no replica yet

_libc = ctypes.CDLL(None)


def _die_with_the_tests() -> None:
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def until(
    condition: Callable[[], Any] | Callable[[], Awaitable[Any]],
    what: str,
    within_s: float = 30.0,
    every_s: float = 0.02,
) -> Any:
    """Poll ``condition`` until it is true and return its value; AssertionError naming ``what`` after ``within_s``."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what}")
        await asyncio.sleep(every_s)


def fake(*knobs: str, slots: int = 4, **fields: Any) -> dict[str, Any]:
    """The configuration of a model served by the fake engine."""
    return {
        "engine": "command",
        "cmd": [sys.executable, str(FAKE_ENGINE), "--port", "${PORT}", *knobs],
        "slots": slots,
        "memory": "64MiB",
        "idle_after": "1h",
        **fields,
    }


@dataclass
class Process:
    name: str
    popen: asyncio.subprocess.Process
    log: Path
    port: int = 0

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.popen.wait()

    async def terminate(self, within_s: float = 60.0) -> int:
        self.signal(signal.SIGTERM)
        return await asyncio.wait_for(self.popen.wait(), within_s)

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass
class Stack:
    folder: Path
    models: dict[str, Any]
    gateway: dict[str, Any] = field(default_factory=dict)
    worker: dict[str, Any] = field(default_factory=dict)
    keys: list[dict[str, Any]] = field(default_factory=list)
    jobs: dict[str, Any] = field(default_factory=dict)
    tracing: dict[str, Any] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)  # others of the configuration
    redis_url: str | None = None
    fleet: str = "test"
    processes: list[Process] = field(default_factory=list)

    async def __aenter__(self) -> Stack:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for process in reversed(self.processes):
            if process.popen.returncode is None:
                process.signal(signal.SIGKILL)
                await process.popen.wait()
        await until(lambda: not self.leftovers(), "no process of the fleet is left", 20)
        if exc[0] is not None:
            sys.stderr.write(self.logs())

    def logs(self) -> str:
        """The ends of all."""
        return "".join(f"--- {p.name} ({p.popen.returncode})\n{p.text()[-6000:]}\n" for p in self.processes)

    def config(self, name: str, **changes: Any) -> Path:
        """Write a configuration file; ``changes`` overlay the top-level sections."""
        data: dict[str, Any] = {
            "fleet": self.fleet,
            "state_dir": str(self.folder / f"state-{name}"),
            "models": self.models,
            "gateway": self.gateway,
            "worker": self.worker,
            "keys": self.keys,
            "jobs": self.jobs,
            "tracing": self.tracing,
            "pool": dict(self.pool),
            **self.sections,
        }
        if self.redis_url:
            data["redis"] = {"url": self.redis_url}
        for section, values in changes.items():
            data[section] = {**data.get(section, {}), **values} if isinstance(values, dict) else values
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    async def spawn(self, name: str, *argv: str, port: int = 0, env: dict[str, str] | None = None) -> Process:
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            popen = await asyncio.create_subprocess_exec(
                *argv,
                stdout=out,
                stderr=out,
                stdin=asyncio.subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "REWARM_TEST_STACK": str(self.folder), "NO_COLOR": "1", **(env or {})},
                start_new_session=True,
                preexec_fn=_die_with_the_tests,
            )
        process = Process(name, popen, log, port)
        self.processes.append(process)
        return process

    async def start_redis(self, name: str = "redis", folder: Path | None = None) -> Process:
        """A redis-server with an append-only file, as a user's would be; start it again to have its data back."""
        binary = shutil.which("redis-server")
        assert binary, "redis-server is not installed"
        data = folder or self.folder / "redis"
        data.mkdir(exist_ok=True)
        path = data / "r.sock" if len(str(data)) < 90 else Path(f"/tmp/rw-{os.getpid()}-{free_port()}.sock")
        if self.redis_url is None:
            self.redis_url = f"unix://{path}"
        process = await self.spawn(
            name,
            binary,
            *("--port", "0", "--unixsocket", self.redis_url.removeprefix("unix://"), "--dir", str(data)),
            *("--appendonly", "yes", "--maxmemory-policy", "noeviction", "--save", ""),
        )
        socket_path = Path(self.redis_url.removeprefix("unix://"))

        def answers() -> bool:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as s:
                s.connect(str(socket_path))
                s.sendall(b"PING\r\n")
                return s.recv(16).startswith(b"+PONG")
            return False

        await until(answers, "Redis answers")
        return process

    async def start_gateway(self, name: str = "gateway-1", **changes: Any) -> Process:
        port = free_port()
        config = self.config(name, gateway={"listen": f"127.0.0.1:{port}", **changes})
        process = await self.spawn(name, sys.executable, "-m", "rewarm", "gateway", str(config), port=port)
        await self.healthy(process)
        return process

    async def start_worker(self, name: str = "worker-1", wait: bool = True, **changes: Any) -> Process:
        config = self.config(name, worker={"name": name, **changes})
        process = await self.spawn(name, sys.executable, "-m", "rewarm", "worker", str(config))
        if wait:
            gateways = [p for p in self.processes if p.port and p.popen.returncode is None]

            async def known() -> bool:
                status = await self.status(gateways[0])
                return any(worker.get("worker") == name for worker in status.get("workers", []))

            if gateways:
                await until(known, f"{name} is known")
        return process

    async def start_serve(self, name: str = "serve", **changes: Any) -> Process:
        """``rewarm serve``: everything of one machine, with its private Redis."""
        port = free_port()
        config = self.config(name, gateway={"listen": f"127.0.0.1:{port}", **changes})
        process = await self.spawn(name, sys.executable, "-m", "rewarm", "serve", str(config), port=port)
        await self.healthy(process)
        return process

    async def healthy(self, process: Process, within_s: float = 30) -> None:
        async def ready() -> bool:
            assert process.popen.returncode is None, f"{process.name} exited: {process.text()[-3000:]}"
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with aiohttp.ClientSession() as http, http.get(f"{process.url}/ready") as answer:
                    return answer.status == 200
            return False

        await until(ready, f"{process.name} is ready", within_s)

    def _operator(self, gateway: Process) -> aiohttp.ClientSession:
        state = Paths.at(self.folder / f"state-{gateway.name}")
        return aiohttp.ClientSession(headers={TOKEN_HEADER: token_path(state).read_text().strip()})

    async def status(self, gateway: Process) -> dict[str, Any]:
        """What ``rewarm ps`` shows."""
        async with self._operator(gateway) as http, http.get(f"{gateway.url}/rewarm/v1/status") as answer:
            out: dict[str, Any] = await answer.json()
            return out

    async def command(self, gateway: Process, kind: str, target: str) -> None:
        """``rewarm wake``, ``sleep`` or ``drain``: asked for, not waited for."""
        order = {"kind": kind, "target": target}
        async with (
            self._operator(gateway) as http,
            http.post(f"{gateway.url}/rewarm/v1/commands", json=order) as answer,
        ):
            assert answer.status in (200, 202), await answer.text()

    async def replicas(self, gateway: Process, model: str) -> list[dict[str, Any]]:
        status = await self.status(gateway)
        return [r for w in status["workers"] for r in w["replicas"] if r["model"] == model]

    async def replica_states(self, gateway: Process, model: str) -> list[str]:
        return [r["state"] for r in await self.replicas(gateway, model)]

    def members(self) -> list[psutil.Process]:
        """Every living process that this stack started, directly or not."""
        return self._marked("REWARM_TEST_STACK", str(self.folder))

    def _marked(self, name: str, value: str | None) -> list[psutil.Process]:
        """Living processes of this stack with that variable in their environment, and their children: a process that
        renames itself (vLLM's engine core does) overwrites the environment that /proc shows."""
        out: dict[int, psutil.Process] = {}
        for process in psutil.process_iter(["pid"]):
            with contextlib.suppress(psutil.Error):
                environ = process.environ()
                ours = environ.get("REWARM_TEST_STACK") == str(self.folder)
                if ours and name in environ and (environ[name] == value if value else environ[name] not in _NOBODYS):
                    out.update({p.pid: p for p in (process, *process.children(recursive=True))})
        return [process for process in out.values() if lives(process)]

    def leftovers(self) -> list[psutil.Process]:
        return self.members()

    def engines(self) -> list[psutil.Process]:
        """Processes that belong to a replica."""
        return self._marked("REWARM_REPLICA", None)

    def engine_programs(self) -> list[psutil.Process]:
        """The fake engines among them."""
        return [p for p in self.engines() if any("fake_engine.py" in part for part in p.cmdline())]


def lives(process: psutil.Process) -> bool:
    """A zombie does not, once its last thread has ended: until then its sockets are open."""
    with contextlib.suppress(psutil.Error, OSError):
        threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
        return bool(process.status() != psutil.STATUS_ZOMBIE) or threads > 1
    return False


# Without its second sentence SmolLM2 wavers: which of two words comes first then depends on how a CPU rounds.
FRANCE = "What is the capital of France? Answer in one sentence."


def chat(model: str, text: str = FRANCE, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


@dataclass
class Event:
    """One line that a streaming client received, and when (monotonic seconds)."""

    at: float
    line: str

    @property
    def data(self) -> Any:
        return json.loads(self.line[6:]) if self.line.startswith("data: {") else None

    @property
    def content(self) -> str:
        data = self.data
        if not data or not data.get("choices"):
            return ""
        return data["choices"][0].get("delta", {}).get("content") or ""


async def stream(url: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> AsyncIterator[Event]:
    """Send a streaming chat request and yield its lines as they come."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.post(f"{url}/v1/chat/completions", json={**body, "stream": True}, headers=headers or {}) as answer,
    ):
        if answer.status != 200:
            yield Event(time.monotonic(), f"status: {answer.status} {(await answer.read()).decode()}")
            return
        async for raw in answer.content:
            line = raw.decode().rstrip("\r\n")
            if line:
                yield Event(time.monotonic(), line)


async def post(
    url: str, body: dict[str, Any], headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """One plain request: status, JSON body, headers."""
    timeout = aiohttp.ClientTimeout(total=300)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.post(f"{url}{path}", json=body, headers=headers or {}) as answer,
    ):
        return answer.status, json.loads(await answer.read()), {k.lower(): v for k, v in answer.headers.items()}


def text_of(body: dict[str, Any]) -> str:
    content = body["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


def rising(values: Iterator[float] | list[float]) -> bool:
    last = -1.0
    for value in values:
        if value < last:
            return False
        last = value
    return True
