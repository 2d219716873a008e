"""A real model wakes from the pool, and what happens to the pool happens to nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from rewarm.paths import Paths
from tests.e2e.pools import filled, replica
from tests.e2e.real import vllm
from tests.e2e.stack import Stack, chat, lives, post, stream, text_of, until

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.timeout(400), pytest.mark.asyncio]


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty for a zombie."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


async def test_a_wake_from_the_pool_a_killed_zygote_and_a_killed_agent(tmp_path: Path, smollm2: Path) -> None:
    small = {"context_length": 512, "slots": 2}
    models = {"smollm2": vllm(smollm2, **small), "plain": vllm(smollm2, **small, env={"OWN": "1"})}
    async with Stack(tmp_path, models) as stack:
        serve = await stack.start_serve()
        pool = await filled(stack, serve)
        assert {entry["model"]: entry["state"] for entry in pool["prepared"]} == {
            "smollm2": "ready",
            "plain": "unsuitable",
        }
        assert pool["memory_bytes"] > 100 * 2**20
        began = time.monotonic()
        status, body, _ = await post(serve.url, chat("smollm2", temperature=0, max_tokens=16))
        pooled_s = time.monotonic() - began
        assert status == 200, body
        assert "Paris" in text_of(body)
        told = await replica(stack, serve, "smollm2")
        assert (told["tier"], told["tier_reason"]) == ("pooled", "")
        # A plain start of the same weights gives the same text, and takes far longer.
        began = time.monotonic()
        _, plain, _ = await post(serve.url, chat("plain", temperature=0, max_tokens=16))
        assert text_of(plain) == text_of(body)
        assert time.monotonic() - began > 2 * pooled_s
        told = await replica(stack, serve, "plain")
        assert told["tier"] == "cold"
        assert "env" in told["tier_reason"]

        # The zygote is killed in the middle of a stream: the stream ends whole, and there is another zygote.
        pool = await filled(stack, serve)
        pieces = []
        async for event in stream(serve.url, chat("smollm2", "Write a story.", max_tokens=120, ignore_eos=True)):
            pieces.append(event)
            if event.content and pool["pid"]:
                os.kill(pool["pid"], signal.SIGKILL)
                pool["pid"] = None
        assert pieces[-1].line == "data: [DONE]"
        assert (await filled(stack, serve))["zygotes"] == 2

        # An engine's host is killed: its engine core goes with it.
        host = psutil.Process((await replica(stack, serve, "smollm2"))["pid"])
        family = [host, *host.children(recursive=True)]
        assert len(family) >= 2
        host.kill()
        await until(lambda: not any(map(lives, family)), "the host and all it started are gone", 20)

        # The agent is killed: engines, zygote and all that was forked ahead go with it.
        agents = [p for p in psutil.Process(serve.pid).children() if "worker" in words(p)]
        assert len(agents) == 1
        family = [p for agent in agents for p in agent.children(recursive=True)]
        assert any("worker.pool.zygote" in words(p) for p in family)
        serve.signal(signal.SIGSTOP)  # it would start another worker
        agents[0].kill()
        await until(lambda: not any(map(lives, family)), "nothing outlives the agent", 20)
        serve.signal(signal.SIGCONT)
        status, body, _ = await post(serve.url, chat("smollm2", temperature=0, max_tokens=16))
        assert status == 200, "the next agent serves again"
        assert await serve.terminate(60) == 0
        await until(lambda: not stack.members(), "nothing is left", 20)
        left = [path.name for path in Paths.at(tmp_path / "state-serve").run.iterdir()]
        assert not [name for name in left if name.endswith((".sock", ".host", ".report"))], left
