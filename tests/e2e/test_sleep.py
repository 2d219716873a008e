"""A whole fleet whose real model sleeps: by command, by the clock, by `keep_alive`; a request wakes it in passing."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.pools import at_zero, filled, packed, phases
from tests.e2e.real import vllm
from tests.e2e.stack import Process, Stack, chat, post, stream, text_of, until
from tests.e2e.test_jobs_progress import get

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.timeout(500), pytest.mark.asyncio]

FIGURES = os.environ.get("REWARM_SLEEP_FIGURES")  # a file for what was measured
ROUNDS = int(os.environ.get("REWARM_SLEEP_ROUNDS", "3"))
MIB = 2**20


async def in_state(stack: Stack, serve: Process, state: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        found = [r for r in await stack.replicas(serve, "small") if r["state"] == state]
        return found[0] if found else None

    replica: dict[str, Any] = await until(there, f"a replica is {state}", 120)
    return replica


async def first_token_s(serve: Process) -> float:
    began = time.monotonic()
    async for event in stream(serve.url, chat("small", temperature=0, max_tokens=4)):
        if event.content:
            return event.at - began
    raise AssertionError("no token came")


def private_bytes(stack: Stack) -> int:
    return sum(p.memory_full_info().uss for p in stack.engines())


async def test_it_sleeps_and_wakes(tmp_path: Path, smollm2: Path) -> None:
    model = vllm(smollm2, context_length=512, slots=2, sleep_after="50m", snapshot="auto")
    async with Stack(tmp_path, {"small": model}) as stack:
        serve = await stack.start_serve()
        status, body, _ = await post(serve.url, chat("small", temperature=0, max_tokens=16))
        assert status == 200, body
        expected = text_of(body)

        # From the checkpoint: its weights are copies, it cannot sleep, and `ps` says why. So "sleep" stops it.
        told = await in_state(stack, serve, "ready")
        assert not told["can_sleep"]
        assert "packed snapshot" in told["no_sleep"]
        await packed(tmp_path, serve, "small")
        await stack.command(serve, "sleep", "small")

        await at_zero(stack, serve, "small")

        # From the snapshot it can.
        status, body, _ = await post(serve.url, chat("small", temperature=0, max_tokens=16))
        assert text_of(body) == expected
        told = await in_state(stack, serve, "ready")
        assert told["can_sleep"], told["no_sleep"]
        awake_private = private_bytes(stack)

        warm, woken, asleep_private = [], [], 0
        for _ in range(ROUNDS):
            warm.append(await first_token_s(serve))
            await stack.command(serve, "sleep", "small")
            await in_state(stack, serve, "asleep")
            asleep_private = private_bytes(stack)
            woken.append(await first_token_s(serve))
            await in_state(stack, serve, "ready")
        status, body, headers = await post(serve.url, chat("small", temperature=0, max_tokens=16))
        assert text_of(body) == expected

        # Asked while it sleeps: the answer says so, and `keep_alive` puts it to sleep again at once.
        await stack.command(serve, "sleep", "small")
        replica = await in_state(stack, serve, "asleep")
        status, body, headers = await post(serve.url, chat("small", temperature=0, max_tokens=16, keep_alive=0))
        assert (status, text_of(body)) == (200, expected)
        assert headers["x-rewarm-start"] == "cold"
        again = await in_state(stack, serve, "asleep")
        assert again["replica"] == replica["replica"]
        assert again["tier"] == "asleep"
        assert again["keep_alive_s"] == 0
        assert again["ready_at_ms"] > replica["ready_at_ms"]
        receipt = (await get(serve.url, f"/v1/requests/{headers['x-request-id']}"))[1]
        assert (receipt["tier"], receipt["wake"]["ready_at_ms"]) == ("asleep", again["ready_at_ms"])
        assert [timing["phase"] for timing in receipt["timings"]] == ["restoring"]

        # `rewarm wake`, and one that stays.
        await stack.command(serve, "wake", "small")
        await in_state(stack, serve, "ready")
        status, body, _ = await post(serve.url, chat("small", temperature=0, max_tokens=4, keep_alive=-1))
        assert status == 200
        figures = {
            "warm_s": warm,
            "woken_s": woken,
            "ratio": statistics.median(woken) / statistics.median(warm),
            "private_awake_bytes": awake_private,
            "private_asleep_bytes": asleep_private,
        }
        # Forks of one that was built ahead: the first proves itself, the second is its copy, and opens at once.
        asked, guesses = [], []
        for _ in range(2):
            await stack.command(serve, "drain", "small")
            await at_zero(stack, serve, "small")
            await filled(stack, serve)
            status, body, _ = await post(serve.url, chat("small", temperature=0, max_tokens=16))
            assert (status, text_of(body)) == (200, expected)
            _, body, _ = await post(serve.url, chat("small", temperature=1, max_tokens=16))
            guesses.append(text_of(body))
            told = await in_state(stack, serve, "ready")
            assert (told["tier"], told["weights"].split()[0]) == ("pooled", "packed")
            assert told["can_sleep"]
            asked.append(bool(phases(told) & {"warming", "verifying"}))
        assert asked == [True, False]
        assert guesses[0] != guesses[1]  # a copy in all but chance
        if FIGURES:
            await asyncio.to_thread(Path(FIGURES).write_text, json.dumps(figures))
        assert asleep_private < awake_private
