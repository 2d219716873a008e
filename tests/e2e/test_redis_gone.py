"""Redis stops and comes back: ready models go on answering, cold ones fail at once with a typed error, all recovers."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.stack import Event, Process, Stack, chat, fake, post, stream, text_of, until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


async def refusal_s(gateway: Process, model: str) -> float:
    """How long a request for a cold model took to be refused for want of a queue; any other answer fails."""
    begin = time.monotonic()
    status, body, headers = await post(gateway.url, chat(model), {"X-Rewarm-Max-Wait": "60"})
    took_s = time.monotonic() - begin
    assert (status, body["error"]["code"]) == (503, "queue_unavailable"), body
    assert headers["retry-after"]
    return took_s


@pytest.mark.asyncio
async def test_the_hot_path_needs_no_redis(tmp_path: Path) -> None:
    models = {"hot": fake("--token-delay", "0.05"), "cold": fake()}
    async with Stack(tmp_path, models) as stack:
        server = await stack.start_redis()
        gateway = await stack.start_gateway()
        worker = await stack.start_worker()
        assert (await post(gateway.url, chat("hot")))[0] == 200

        lines: list[Event] = []
        begun = asyncio.Event()

        async def long_stream() -> None:
            async for event in stream(gateway.url, chat("hot", fake={"tokens": 200})):
                lines.append(event)
                begun.set()

        running = asyncio.create_task(long_stream())
        await begun.wait()
        await server.kill()

        assert await refusal_s(gateway, "cold") < 1.0, (
            "the first refusal is quick, whether the gateway knows yet or not"
        )
        status, body, _ = await post(gateway.url, chat("hot", "hello", fake={"token_delay": 0}))
        assert (status, text_of(body)) == (200, "You said: hello")
        assert await refusal_s(gateway, "cold") < 1.0
        assert (await post(gateway.url, chat("hot", "again", fake={"token_delay": 0})))[0] == 200
        await running
        assert lines[-1].line == "data: [DONE]"
        assert "word199" in "".join(event.content for event in lines)

        await stack.start_redis("redis-again")

        async def woken() -> bool:
            return (await post(gateway.url, chat("cold")))[0] == 200

        await until(woken, "the cold model wakes once Redis is back", 40, every_s=0.5)
        assert gateway.popen.returncode is None
        assert worker.popen.returncode is None
        states = await stack.replica_states(gateway, "hot")
        assert states == ["ready"]


@pytest.mark.asyncio
async def test_a_redis_that_hangs_is_as_good_as_gone_and_comes_back_without_a_restart(tmp_path: Path) -> None:
    """SIGSTOP: its sockets accept and never answer. The first cold request has to find that out, and waits the two
    seconds that a command to Redis may take; once the gateway knows, refusals are immediate."""
    async with Stack(tmp_path, {"hot": fake("--token-delay", "0.05"), "cold": fake()}) as stack:
        server = await stack.start_redis()
        gateway = await stack.start_gateway()
        worker = await stack.start_worker()
        assert (await post(gateway.url, chat("hot")))[0] == 200

        lines: list[Event] = []
        begun = asyncio.Event()

        async def long_stream() -> None:
            async for event in stream(gateway.url, chat("hot", fake={"tokens": 200})):
                lines.append(event)
                begun.set()

        async def hot() -> None:
            begin = time.monotonic()
            status, body, _ = await post(gateway.url, chat("hot", "hello", fake={"token_delay": 0}))
            assert (status, text_of(body)) == (200, "You said: hello")
            assert time.monotonic() - begin < 1.0

        async def redis_is(state: str) -> bool:
            return bool((await stack.status(gateway))["redis"] == state)

        running = asyncio.create_task(long_stream())
        await begun.wait()
        server.signal(signal.SIGSTOP)
        first, _ = await asyncio.gather(refusal_s(gateway, "cold"), hot())
        assert first < 3.0
        await until(lambda: redis_is("unreachable"), "the gateway has noticed", 10)
        for _ in range(3):
            assert await refusal_s(gateway, "cold") < 1.0
            await hot()
        await running
        assert lines[-1].line == "data: [DONE]"
        assert "word199" in "".join(event.content for event in lines)

        server.signal(signal.SIGCONT)
        await until(lambda: redis_is("ok"), "the gateway has found Redis again", 15)
        assert (await post(gateway.url, chat("cold")))[0] == 200
        assert await stack.replica_states(gateway, "hot") == ["ready"]

        async def nobody_waits() -> bool:
            models = (await stack.status(gateway))["models"]
            return not any(model["waiting"] for model in models.values())

        await until(nobody_waits, "what was refused does not stay in the queue", 15)
        assert gateway.popen.returncode is None
        assert worker.popen.returncode is None


@pytest.mark.asyncio
async def test_requests_held_while_redis_restarts_empty_are_still_answered(tmp_path: Path) -> None:
    async with Stack(tmp_path, {"m": fake("--start-delay", "6")}) as stack:
        server = await stack.start_redis()
        gateway = await stack.start_gateway()
        await stack.start_worker()
        held = [asyncio.create_task(post(gateway.url, chat("m", f"n{n}"))) for n in range(5)]

        async def loading() -> bool:
            return "starting" in await stack.replica_states(gateway, "m")

        await until(loading, "the load has begun")
        await server.kill()
        for file in (stack.folder / "redis").rglob("*.aof"):
            file.unlink()
        for file in (stack.folder / "redis").rglob("*.manifest"):
            file.unlink()
        await stack.start_redis("redis-empty")
        answers = await asyncio.gather(*held)
        assert [text_of(body) for status, body, _ in answers if status == 200] == [f"You said: n{n}" for n in range(5)]
