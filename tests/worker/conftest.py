"""An agent in this process, on a real Redis, with a leader that wants what the test says."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest_asyncio
import uvloop

from fleet import FleetClient, Leader, Publisher, Queue, Registry
from rewarm.config import Config, catalogue, parse
from rewarm.messages import CatalogueEntry, ReplicaReport, Ticket, Want, WorkerBeat
from rewarm.paths import Paths
from rewarm.states import ReplicaState
from rewarm.upstream import UpstreamPool, UpstreamResponse
from worker.agent import Agent
from worker.containment import become_subreaper
from worker.run import make_surroundings

ROOT = Path(__file__).resolve().parents[2]
FAKE_ENGINE = ROOT / "tests" / "programs" / "fake_engine.py"


def pytest_asyncio_loop_factories(config: object, item: object) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The worker runs on uvloop, so do its tests."""
    return {"uvloop": uvloop.new_event_loop}


async def until(condition: Callable[[], Any], what: str, within_s: float = 20.0) -> Any:
    """Poll until ``condition()`` (or what it awaits) is true, and return it."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.02)


def fake_command(*knobs: str) -> list[str]:
    return [sys.executable, str(FAKE_ENGINE), "--port", "${PORT}", *knobs]


class Rig:
    def __init__(self, config: Config, paths: Paths, client: FleetClient) -> None:
        self.config = config
        self.paths = paths
        self.client = client
        self.registry = Registry(client)
        self.queue = Queue(client)
        self.pool = UpstreamPool()
        self.leader = Leader(client, "test-leader", ttl_ms=120_000)
        self.publisher = Publisher(client, self.leader)
        self.entries: dict[str, CatalogueEntry] = catalogue(config)
        self.agent: Agent
        self.term: int

    async def want(
        self, replica: str, state: ReplicaState = ReplicaState.READY, *, model: str = "m", **more: Any
    ) -> Want:
        entry = self.entries[model]
        fields: dict[str, Any] = {
            "replica": replica,
            "worker": self.config.worker.name,
            "model": model,
            "spec": entry.spec,
            "spec_hash": entry.spec_hash,
            "state": state,
            "term": self.term,
        }
        want = Want(**fields | more)
        await self.publisher.want([want])
        return want

    async def unwant(self, replica: str) -> None:
        await self.publisher.unwant(self.config.worker.name, replica)

    async def beat(self) -> WorkerBeat | None:
        return (await self.registry.snapshot()).workers.get(self.config.worker.name)

    async def report(self, replica: str) -> ReplicaReport | None:
        beat = await self.beat()
        return None if beat is None else next((r for r in beat.replicas if r.replica == replica), None)

    async def reaches(self, replica: str, state: ReplicaState, within_s: float = 20.0) -> ReplicaReport:
        async def there() -> ReplicaReport | None:
            report = await self.report(replica)
            return report if report is not None and report.state is state else None

        report: ReplicaReport = await until(there, f"{replica} is {state.value}", within_s)
        return report

    async def ready(self, replica: str = "m-1", **more: Any) -> ReplicaReport:
        await self.want(replica, **more)
        return await self.reaches(replica, ReplicaState.READY)

    async def enqueue(self, ticket: str, gateway: str = "gw-1", model: str = "m") -> None:
        await self.queue.gateway_beat(gateway, ttl_ms=120_000)  # once, for as long as a load may take
        await self.queue.enqueue(Ticket(id=ticket, model=model, tenant="t", gateway=gateway, band=1), max_waiting=1000)

    async def chat(
        self, endpoint: str, text: str = "hello", *, headers: dict[str, str] | None = None, **body: Any
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        response = await self.stream(endpoint, text, headers=headers, **body)
        return response.status, {k.lower(): v for k, v in response.headers}, await response.read(2**20)

    async def stream(
        self, endpoint: str, text: str = "hello", *, headers: dict[str, str] | None = None, **body: Any
    ) -> UpstreamResponse:
        lines = [(k.encode(), v.encode()) for k, v in ({"X-Rewarm-Band": "1"} | (headers or {})).items()]
        data = {"model": "m", "messages": [{"role": "user", "content": text}], **body}
        return await self.pool.request(endpoint, "POST", "/v1/chat/completions", lines, json.dumps(data).encode())


RunRig = Callable[..., Any]


@pytest_asyncio.fixture
async def rig(tmp_path: Path, fleet_client: FleetClient) -> AsyncIterator[RunRig]:
    """``async with rig("--start-delay", "1", slots=2) as r``: an agent whose model ``m`` is the fake engine."""

    @asynccontextmanager
    async def run(*knobs: str, worker: str = "", command: list[str] | None = None, **fields: Any) -> AsyncIterator[Rig]:
        become_subreaper()
        model = {"engine": "command", "cmd": command or fake_command(*knobs), "memory": "64MiB", "slots": 4} | fields
        config = parse(
            json.dumps(
                {
                    "state_dir": str(tmp_path / "state"),
                    "worker": {"name": "w1", "heartbeat": "200ms", **(json.loads(worker) if worker else {})},
                    "models": {"m": model},
                }
            )
        )
        paths = Paths.at(tmp_path / "state")
        paths.make()
        out = Rig(config, paths, fleet_client)
        term = await out.leader.campaign()
        assert term is not None
        out.term = term
        async with make_surroundings(config, paths) as surroundings:
            out.agent = Agent(surroundings, fleet_client)
            task = asyncio.create_task(out.agent.run())
            try:
                yield out
            finally:
                out.agent.stop()
                out.agent.stop()
                await asyncio.wait_for(task, 30)
                await out.pool.close()
                for name in list((await out.registry.snapshot()).wants.get("w1", {})):
                    await out.unwant(name)
                await out.leader.resign()

    yield run


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
