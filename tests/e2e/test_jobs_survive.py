"""Fifty jobs; worker, gateway and Redis are killed in the middle, one after the other. All fifty complete, each with
the text of an undisturbed run, and no history shows two ends or two attempts mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rewarm.jobs import JobState
from tests.e2e.conftest import EngineLog
from tests.e2e.jobs import Watched, child, no_leaks, restarted, watching
from tests.e2e.stack import Process, Stack, fake, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(400)]

JOBS = 50


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


async def run_killed(serve: Process, watched: Watched, bodies: list[dict[str, Any]]) -> list[str]:
    """Order one job for each body; kill (SIGKILL) worker, gateway and Redis, each while jobs run and others wait.

    The last ten are ordered while the gateway is dead, and repeated until it answers. The ids in order; all have ended.
    """

    async def order(numbers: range) -> list[str]:
        return [await watched.order(serve.url, f"killed-{n}", bodies[n]) for n in numbers]

    early, late = range(JOBS - 10), range(JOBS - 10, JOBS)
    ids = await order(early)
    for word, done in (("worker", 8), ("gateway", 18), ("redis-server", 30)):

        async def in_the_middle(done: int = done) -> bool:
            return watched.ended >= done and watched.count(JobState.IN_PROGRESS) > 0

        await until(in_the_middle, f"{done} are done and others run", 120)
        assert watched.ended < len(watched.histories)
        victim = child(serve, word)
        victim.kill()
        if word == "gateway":
            ids += await order(late)
        await restarted(serve, word, victim)
    await until(lambda: watched.ended == JOBS, "all have ended", 180)
    assert len(set(ids)) == JOBS
    assert ids[-1] == await watched.order(serve.url, f"killed-{JOBS - 1}", bodies[-1]), "ordered again: the same job"
    return ids


async def result_of(url: str, id_: str) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/v1/jobs/{id_}/result") as answer:
        assert answer.status == 200, await answer.read()
        return text_of(await answer.json())


@pytest.mark.asyncio
async def test_kills_of_worker_gateway_and_redis_cost_no_job_and_change_no_text(
    tmp_path: Path, engine_log: EngineLog
) -> None:
    model = fake("--token-delay", "0.02", "--tokens", "40", "--log", str(engine_log.path), slots=4)
    async with Stack(tmp_path / "s", {"m": model}) as stack:
        serve = await stack.start_serve()
        async with watching(stack) as watched:
            ids = await run_killed(serve, watched, [ask(f"n{n}") for n in range(JOBS)])
            words = " ".join(f"word{i}" for i in range(3, 40))
            for n, id_ in enumerate(ids):
                assert await watched.check(id_) == f"You said: n{n} {words} "
                assert await result_of(serve.url, id_) == f"You said: n{n} {words} "
            again = sum(len(history.attempts) > 1 for history in watched.histories.values())
            assert 1 <= again <= 12, "what ran at a kill ran again, and little else"
            assert engine_log.count("end") >= JOBS
            await no_leaks(watched.client)
        assert await serve.terminate() == 0
