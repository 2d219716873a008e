"""The stand-in engines do what their knobs say: tests elsewhere take their word for it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.e2e.stack import free_port, until

HERE = Path(__file__).resolve().parent
FRANCE = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
ANSWER = "The capital of France is Paris. You said: What is the capital of France?"


class Engine:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.http = aiohttp.ClientSession()

    async def ask(self, **fields: Any) -> dict[str, Any]:
        async with self.http.post(f"{self.url}/v1/chat/completions", json={**FRANCE, **fields}) as answer:
            out: dict[str, Any] = await answer.json()
            return out

    async def lines(self, **fields: Any) -> list[str]:
        """The data of a stream. Raises ClientPayloadError where its connection breaks."""
        body = {**FRANCE, "stream": True, **fields}
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body) as answer:
            text = (await answer.read()).decode()
        return [line.removeprefix("data: ") for line in text.splitlines() if line]

    async def stats(self) -> dict[str, Any]:
        async with self.http.get(f"{self.url}/stats") as answer:
            out: dict[str, Any] = await answer.json()
            return out

    async def healthy(self) -> bool:
        try:
            async with self.http.get(f"{self.url}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectionError:
            return False


@asynccontextmanager
async def running(program: str, *knobs: str, ready: bool = True) -> AsyncIterator[Engine]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / program), "--port", str(port), *knobs, stdout=asyncio.subprocess.DEVNULL
    )
    engine = Engine(process, port)
    try:
        if ready:
            await until(engine.healthy, "the engine is healthy")
        yield engine
    finally:
        await engine.http.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


def content(lines: list[str]) -> str:
    chunks = [json.loads(line) for line in lines if line.startswith("{")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


@pytest.mark.asyncio
async def test_answers_are_greedy_echo_the_question_and_know_paris() -> None:
    async with running("fake_engine.py") as engine:
        whole = await engine.ask(model="any")
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": ANSWER}
        assert whole["usage"] == {"prompt_tokens": 6, "completion_tokens": 14, "total_tokens": 20}
        lines = await engine.lines(stream_options={"include_usage": True})
        assert lines[-1] == "[DONE]"
        assert content(lines) == ANSWER
        assert json.loads(lines[0])["choices"][0]["delta"]["role"] == "assistant"
        assert json.loads(lines[-2])["usage"]["completion_tokens"] == 14
        short = await engine.ask(max_tokens=2)
        assert short["choices"][0]["finish_reason"] == "length"
        assert short["choices"][0]["message"]["content"] == "The capital "


@pytest.mark.asyncio
async def test_a_request_may_ask_for_its_own_accident() -> None:
    async with running("fake_engine.py") as engine:
        truncated = await engine.lines(fake={"truncate_after": 3})
        assert content(truncated) == "The capital of "
        assert "[DONE]" not in truncated
        with pytest.raises(aiohttp.ClientPayloadError):
            await engine.lines(fake={"cut_after": 3})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await engine.lines(fake={"stall_after": 3})
        assert (await engine.ask(fake={"fail_status": 418}))["error"]["code"] == "fake_failure"
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
            await engine.lines(fake={"die_after_tokens": 3})
        assert await engine.process.wait() == -signal.SIGKILL


@pytest.mark.asyncio
async def test_it_counts_what_runs_at_once_and_in_which_order(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    async with running("fake_engine.py", "--log", str(log)) as engine:
        slow = {"first_token_delay": 0.2}
        await asyncio.gather(*(engine.ask(user=f"tenant-{n}", fake=slow) for n in range(5)))
        leaving = asyncio.create_task(engine.ask(user="leaver", fake={"stall_after": 0}))
        await until(lambda: "leaver" in log.read_text(), "its request arrived")
        leaving.cancel()

        async def noticed() -> bool:
            return bool((await engine.stats())["aborted"])

        await until(noticed, "the disconnect is noticed")
        stats = await engine.stats()
        assert (stats["peak"], stats["completed"], stats["aborted"], stats["running"]) == (5, 5, 1, 0)
        assert sorted(stats["order"]) == ["leaver", *(f"tenant-{n}" for n in range(5))]
        events = [json.loads(line) for line in log.read_text().splitlines()]
        assert [e["event"] for e in events if e["tenant"] == "leaver"] == ["start", "abort"]
        assert max(e["running"] for e in events) == 5


@pytest.mark.asyncio
@pytest.mark.parametrize(("knobs", "status"), [(["--exit-at-start", "3"], 3), (["--exit-after-s", "0.1"], 7)])
async def test_it_exits_when_told(knobs: list[str], status: int) -> None:
    async with running("fake_engine.py", *knobs, ready=False) as engine:
        assert await asyncio.wait_for(engine.process.wait(), 20) == status


@pytest.mark.asyncio
async def test_it_never_gets_ready_when_told() -> None:
    async with running("fake_engine.py", "--open-but-never-ready", ready=False) as engine:

        async def answers() -> bool:
            try:
                async with engine.http.get(f"{engine.url}/health") as answer:
                    return answer.status == 503
            except aiohttp.ClientConnectionError:
                return False

        await until(answers, "it answers 503")


@pytest.mark.asyncio
async def test_it_leaves_a_child_and_holds_memory_and_ignores_sigterm() -> None:
    knobs = ("--fork-child", "--allocate-mb", "64", "--ignore-sigterm")
    async with running("fake_engine.py", *knobs) as engine:
        process = psutil.Process(engine.process.pid)
        children = process.children()
        try:
            assert len(children) == 1
            assert process.memory_info().rss > 64 * 2**20
            engine.process.send_signal(signal.SIGTERM)
            assert await engine.healthy()
        finally:
            for child in children:
                child.kill()


@pytest.mark.asyncio
async def test_the_fast_engine_paces_its_streams() -> None:
    async with running("fast_engine.py", "--paced-ms", "20") as engine:
        assert (await engine.ask())["choices"][0]["message"]["content"] == "Hello, world!"
        begin = asyncio.get_running_loop().time()
        lines = await engine.lines(max_tokens=10)
        assert asyncio.get_running_loop().time() - begin >= 0.2
        assert lines[-1] == "[DONE]"
        assert content(lines).split() == [f"word{n:x}" for n in range(10, 0, -1)]


@pytest.mark.asyncio
async def test_the_fake_s_responses_are_shaped_as_vllm_s() -> None:
    """The recording is what vLLM 0.32 sent; the fake's events have the same types, order and fields."""
    recording = (HERE.parent / "gateway" / "recorded" / "vllm_0_32_responses.txt").read_text()
    body = {"input": "one two three four", "max_output_tokens": 3, "stream": True}
    async with running("fake_engine.py") as engine:
        async with engine.http.post(f"{engine.url}/v1/responses", json={"model": "smollm2", **body}) as answer:
            told = (await answer.read()).decode()
        async with engine.http.post(f"{engine.url}/v1/responses", json={**body, "background": True}) as answer:
            assert answer.status == 400, "like vLLM, it keeps nothing"

    def shape(text: str) -> list[tuple[str, frozenset[str]]]:
        """Each type once, in order, with the names of its fields."""
        out: list[tuple[str, frozenset[str]]] = []
        for event in text.strip().split("\n\n"):
            name, data = event.split("\n")
            payload = json.loads(data.removeprefix("data: "))
            assert payload["type"] == name.removeprefix("event: ")
            if not out or out[-1][0] != payload["type"]:
                out.append((payload["type"], frozenset(payload)))
        return out

    assert shape(told) == shape(recording)
    fake, real = (json.loads(text.strip().rpartition("data: ")[2])["response"] for text in (told, recording))
    assert fake.keys() <= real.keys()
    assert (fake["status"], fake["incomplete_details"]) == (real["status"], real["incomplete_details"])
    assert fake["output"][0].keys() <= real["output"][0].keys()
    assert fake["usage"].keys() <= real["usage"].keys()
