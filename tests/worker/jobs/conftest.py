"""Jobs on a real agent, a real gate, a real engine program and a real Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from fleet import JOB_BANDS, Chunk, Jobs
from rewarm.jobs import TERMINAL, Job, JobSpec, JobState
from tests.worker.conftest import Rig, RunRig, until

CHAT = "/v1/chat/completions"


def pytest_asyncio_loop_factories(config: object, item: object) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


class JobRig:
    """A rig whose model ``m`` is ready, and what a submitter and the engine's own log see."""

    def __init__(self, rig: Rig, log: Path) -> None:
        self.rig = rig
        self.jobs = Jobs(rig.client)
        self._log = log

    async def submit(self, id_: str, text: str = "hello", *, spec: dict[str, Any] | None = None, **body: Any) -> None:
        await self.send(id_, {"messages": [{"role": "user", "content": text}], **body}, spec=spec)

    async def send(self, id_: str, body: dict[str, Any], *, spec: dict[str, Any] | None = None) -> None:
        fields = {"path": CHAT, "band": JOB_BANDS["normal"], "model": "m", "asked_model": "m", **(spec or {})}
        wanted = JobSpec(id=id_, tenant="t", **fields)
        await self.jobs.submit(wanted, json.dumps({"model": wanted.asked_model, "user": id_, **body}).encode())

    async def job(self, id_: str) -> Job:
        job = await self.jobs.get(id_)
        assert job is not None
        return job

    async def reaches(self, id_: str, *states: JobState, within_s: float = 20.0) -> Job:
        async def there() -> Job | None:
            job = await self.jobs.get(id_)
            return job if job is not None and job.state in states else None

        job: Job = await until(there, f"{id_} is {' or '.join(states)}", within_s)
        return job

    async def ended(self, id_: str, within_s: float = 20.0) -> Job:
        return await self.reaches(id_, *TERMINAL, within_s=within_s)

    async def answer(self, id_: str) -> dict[str, Any]:
        raw = await self.jobs.result(id_)
        assert raw is not None
        out: dict[str, Any] = json.loads(raw)
        return out

    async def chunks(self, id_: str) -> list[Chunk]:
        return [chunk for chunk in await self.jobs.events(id_) if not chunk.end]

    async def output(self, id_: str) -> list[dict[str, Any]]:
        """The chunks' events as objects."""
        raw = b"".join(chunk.data for chunk in await self.chunks(id_))
        return [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: ")]

    def seen(self, id_: str) -> list[str]:
        """What the engine did with the job: start, end, abort."""
        return [line["event"] for line in self.lines() if line["tenant"] == id_]

    def lines(self) -> list[dict[str, Any]]:
        text = self._log.read_text() if self._log.exists() else ""
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def job_rig(rig: RunRig, tmp_path: Path) -> RunRig:
    """``async with job_rig("--token-delay", "0.05", slots=2) as r``."""

    @asynccontextmanager
    async def run(*knobs: str, **fields: Any) -> AsyncIterator[JobRig]:
        log = tmp_path / "engine.jsonl"
        async with rig("--log", str(log), *knobs, **fields) as inner:
            await inner.ready()
            yield JobRig(inner, log)

    return run
