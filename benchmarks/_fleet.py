"""A gateway with a worker that only pretends: it reports what the leader wants of it, at an endpoint that we name.

So the gateway's process does all that it does in a real fleet (registry, leader, receipts, heartbeats), and nothing
else on the machine does anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks._processes import Program, free_port, running, wait_for_port
from fleet import FleetClient, Registry
from rewarm.errors import RedisUnreachable
from rewarm.ids import boot_id
from rewarm.messages import Progress, ReplicaReport, Want, WorkerBeat
from rewarm.states import ReplicaState

API_KEY = f"sk-{secrets.token_hex(32)}"
_FLEET = "benchmark"
_SECRET = "benchmark-secret"  # noqa: S105  # of a fleet that lives for minutes on loopback


@dataclass(frozen=True)
class Stub:
    """A model whose replica is pretended: ready at ``endpoint``, or loading for ever where that is None."""

    endpoint: str | None
    slots: int = 1024


class StubWorker:
    def __init__(self, client: FleetClient, models: dict[str, Stub]) -> None:
        self._registry = Registry(client)
        self._models = models
        self._boot = boot_id("worker")
        self._beats = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Beat twice a second."""
        while not stop.is_set():
            await self.beat()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 0.5)

    async def beat(self) -> None:
        self._beats += 1
        wants = await self._registry.wants("stub")
        beat = WorkerBeat(
            worker="stub",
            boot=self._boot,
            host="127.0.0.1",
            pid=os.getpid(),
            replicas=tuple(self._report(want) for want in wants if want.model in self._models),
        )
        await self._registry.beat(beat, ttl_ms=10_000, ring=self._beats % 4 == 1)

    def _report(self, want: Want) -> ReplicaReport:
        stub = self._models[want.model]
        fraction = min(0.95, self._beats / 1000)
        loading = Progress(
            model=want.model,
            replica=want.replica,
            phase=ReplicaState.RESTORING,
            phase_fraction=fraction,
            fraction=fraction,
            bytes_done=int(fraction * 2**30),
            bytes_total=2**30,
            eta_s=60.0,
            seq=self._beats,
        )
        return ReplicaReport(
            replica=want.replica,
            model=want.model,
            spec_hash=want.spec_hash,
            state=ReplicaState.READY if stub.endpoint else ReplicaState.RESTORING,
            term=want.term,
            attempt=want.attempt,
            endpoint=stub.endpoint,
            slots=stub.slots,
            progress=None if stub.endpoint else loading,
        )


@dataclass
class Fleet:
    gateway: Program
    port: int
    client: FleetClient

    async def waiting(self, model: str) -> int:
        """Tickets of ``model`` in Redis."""
        held = (await Registry(self.client).snapshot()).waiting.get(model)
        return held.count if held else 0


@contextlib.asynccontextmanager
async def fleet(folder: Path, models: dict[str, Stub], **gateway: Any) -> AsyncIterator[Fleet]:
    """Redis, a ``rewarm gateway`` with one API key, and a :class:`StubWorker` for ``models``; ``gateway`` overlays its
    section of the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    url = f"unix://{folder}/redis.sock"
    port = free_port()
    config = {
        "fleet": _FLEET,
        "state_dir": str(folder / "state"),
        "redis": {"url": url},
        "gateway": {"listen": f"127.0.0.1:{port}", **gateway},
        "keys": [{"name": "benchmark", "sha256": hashlib.sha256(API_KEY.encode()).hexdigest()}],
        "models": {
            name: {
                "engine": "command",
                "cmd": ["a-stub-that-nobody-starts", "${PORT}"],
                "slots": stub.slots,
                "min_replicas": 1,
                "max_waiting": 100_000,
                "memory": "1MiB",
            }
            for name, stub in models.items()
        },
    }
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(config))
    redis = shutil.which("redis-server")
    if redis is None:
        raise RuntimeError("redis-server is not installed")
    redis_argv = [redis, "--port", "0", "--unixsocket", f"{folder}/redis.sock", "--dir", str(folder), "--save", ""]
    argv = [sys.executable, "-m", "rewarm", "gateway", str(path)]
    with running("redis", [*redis_argv, "--appendonly", "yes"], folder):
        client = await _connected(url)
        try:
            with running("gateway", argv, folder, env={"REWARM_FLEET_SECRET": _SECRET}) as program:
                await asyncio.to_thread(wait_for_port, program, port)
                async with asyncio.TaskGroup() as group:
                    stop = asyncio.Event()
                    group.create_task(StubWorker(client, models).run(stop))
                    out = Fleet(program, port, client)
                    try:
                        await _reported(out, models)
                        yield out
                    finally:
                        stop.set()
        finally:
            await client.close()


async def _connected(url: str, within_s: float = 10.0) -> FleetClient:
    async with asyncio.timeout(within_s):
        while True:
            try:
                return await FleetClient.connect(url, _FLEET, check=False)
            except RedisUnreachable:
                await asyncio.sleep(0.05)


async def _reported(running_fleet: Fleet, models: dict[str, Stub]) -> None:
    """Wait until the leader has wanted each model and the stub has reported it."""
    registry = Registry(running_fleet.client)
    async with asyncio.timeout(30):
        while True:
            running_fleet.gateway.alive()
            view = await registry.snapshot()
            if all(view.replicas(model) for model in models):
                break
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.5)  # gateways look once a second at the least
