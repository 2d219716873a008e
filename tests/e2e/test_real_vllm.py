"""The product's main promise on the real engine: a chat request to a model at zero, with honest progress, answered."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from tests.e2e.real import NO_POOL, engine_cores, vllm
from tests.e2e.stack import Event, Process, Stack, chat, lives, post, rising, stream, text_of, until

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.timeout(300)]

FRACTION = re.compile(r"(\d+(?:\.\d+)?) ?%")
PHASES = ("starting", "restoring", "initialising", "warming", "verifying")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Of all tests that ask a model which is ready, and need not find it as others left it."""
    model = vllm(smollm2, aliases=["gpt-4o-mini"], answer_stall="5s", retry_backoff="100ms")
    async with Stack(tmp_path_factory.mktemp("real"), {"smollm2": model}, pool=NO_POOL) as stack:
        await stack.start_serve()
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def serve(stack: Stack) -> Process:
    """The model is ready."""
    serve = stack.processes[0]
    assert (await post(serve.url, chat("smollm2", max_tokens=1)))[0] == 200
    return serve


@pytest.mark.asyncio
async def test_a_stream_to_a_model_at_zero_shows_progress_and_then_paris(tmp_path: Path, smollm2: Path) -> None:
    weights = sum(file.stat().st_size for file in smollm2.glob("*.safetensors"))
    # Idle for so long that a busy machine finds the time for the second request.
    model = vllm(smollm2, idle_after="4s")
    async with Stack(tmp_path, {"smollm2": model}, pool=NO_POOL) as stack:
        serve = await stack.start_serve()
        begin = time.monotonic()
        lines = [event async for event in stream(serve.url, chat("smollm2", temperature=0, max_tokens=24))]
        first_s = lines[0].at - begin
        assert first_s < 3.0, f"the first sign comes within 3 s, not after {first_s:.2f}: {lines[0].line}"
        gaps = [f"{b.at - a.at:.2f} s between {a.line!r} and {b.line!r}" for a, b in pairwise(lines) if b.at > a.at + 5]
        assert not gaps, "no gap is over 5 s"
        shown = [
            float(found[1]) for event in lines if event.line.startswith(":") and (found := FRACTION.search(event.line))
        ]
        assert rising(shown), shown
        assert len(set(shown)) >= 5, shown
        assert "Paris" in "".join(event.content for event in lines)
        assert lines[-1].line == "data: [DONE]"
        status, body, headers = await post(serve.url, chat("smollm2", temperature=0, max_tokens=24))
        assert status == 200
        assert "Paris" in text_of(body)
        assert headers["x-rewarm-start"] == "warm"
        await until(lambda: not stack.engines(), "it drained to zero", 30)
        # The same as JSON objects: bytes that match the files read (the snapshot is off, so the same files again).
        chunks = [
            event.data["rewarm"]
            async for event in stream(serve.url, chat("smollm2", max_tokens=4), {"X-Rewarm-Progress": "chunks"})
            if event.data and "rewarm" in event.data
        ]
        loads = [chunk for chunk in chunks if chunk.get("bytes_total")]
        assert {chunk["bytes_total"] for chunk in loads} == {weights}
        assert loads[-1]["bytes_done"] == weights
        assert rising([chunk["fraction"] for chunk in chunks if "fraction" in chunk])
        # A change is shown at most once a second, so a phase shorter than that may go unseen; those that are shown are
        # in order. What the load was made of is told before the answer, complete.
        phases = [float(PHASES.index(chunk["phase"])) for chunk in chunks if chunk.get("phase", "cold") in PHASES]
        assert rising(phases), chunks
        assert len(set(phases)) >= 2, chunks
        assert [told["phase"] for told in chunks[-1]["phases"]] == list(PHASES)
        assert all(told["duration_s"] > 0 for told in chunks[-1]["phases"]), chunks[-1]


@pytest.mark.asyncio
async def test_truncated_weights_are_a_typed_error_that_names_the_file(tmp_path: Path, smollm2: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in smollm2.iterdir():
        if file.suffix == ".safetensors":
            data = file.read_bytes()
            (broken / file.name).write_bytes(data[: len(data) // 2])
        elif file.is_file():
            (broken / file.name).symlink_to(file)
    models = {"broken": vllm(broken), "missing": vllm(tmp_path / "nowhere"), "huge": vllm(smollm2, memory="9TiB")}
    async with Stack(tmp_path / "s", models, pool=NO_POOL) as stack:
        serve = await stack.start_serve()
        for model, reason, says in (
            ("broken", "weights_corrupt", ".safetensors"),
            ("missing", "weights_missing", "nowhere"),
            ("huge", "never_fits", "9.0 TiB"),
        ):
            status, body, headers = await post(serve.url, chat(model))
            assert (status, body["error"]["code"]) == (500, "model_load_failed"), body
            assert reason in json.dumps(body)
            assert says in body["error"]["message"]
            assert headers["x-should-retry"] == "false"
        await until(lambda: not stack.engines(), "nothing is left")


# --- one stack, from a model that is ready to what is left after its SIGTERM ------------------------------------------


@pytest.mark.asyncio(loop_scope="module")
async def test_what_the_client_sends_reaches_vllm_untouched(serve: Process) -> None:
    body = chat("gpt-4o-mini", temperature=0.5, max_tokens=8, logprobs=True, top_logprobs=2, n=2, seed=1)
    status, answer, _ = await post(serve.url, body)
    assert status == 200, answer
    assert len(answer["choices"]) == 2
    assert len(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    status, answer, _ = await post(
        serve.url,
        {"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 4},
        path="/v1/completions",
    )
    assert status == 200
    assert answer["object"] == "text_completion"
    status, answer, _ = await post(serve.url, chat("smollm2", temperature="hot"))
    assert status == 400, "vLLM's own refusal passes through"


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_real_engine_core_that_dies_or_hangs_in_a_stream(
    stack: Stack, serve: Process, blow: signal.Signals
) -> None:
    lines: list[Event] = []
    struck = 0.0
    body = chat("smollm2", "Write a long story.", max_tokens=900, ignore_eos=True)
    async for event in stream(serve.url, body):
        lines.append(event)
        if event.content and not struck:
            struck = time.monotonic()
            cores = engine_cores(stack)
            assert cores
            for core in cores:
                os.kill(core.pid, blow)
    assert lines[-1].line == "data: [DONE]"
    code = json.loads(lines[-2].line[6:])["error"]["code"]
    assert code == ("worker_died" if blow == signal.SIGKILL else "engine_stalled")
    assert lines[-2].at - struck < (2.0 if blow == signal.SIGKILL else 7.0)
    if blow == signal.SIGKILL:
        status, answer, _ = await post(serve.url, chat("smollm2", temperature=0, max_tokens=16))
        assert status == 200
        assert "Paris" in text_of(answer)


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_real_engine_that_is_killed_while_it_loads_is_loaded_again(stack: Stack, blow: signal.Signals) -> None:
    serve = stack.processes[0]
    await to_zero(stack, serve)
    struck = False
    lines: list[Event] = []
    async for event in stream(serve.url, chat("smollm2", temperature=0, max_tokens=24)):
        lines.append(event)
        if not struck and event.line.startswith(":") and stack.engines():
            struck = True
            for process in stack.engines():
                os.kill(process.pid, blow)
    assert struck
    assert "Paris" in "".join(event.content for event in lines)


async def to_zero(stack: Stack, serve: Process) -> None:
    """What the test before left is stopped, and the leader knows."""
    if stack.engines():
        await stack.command(serve, "sleep", "smollm2")

    async def there() -> bool:
        return not stack.engines() and not await stack.replicas(serve, "smollm2")

    await until(there, "the model is at zero", 60)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stream_outlives_sigterm_of_serve_whole_and_then_nothing_is_left(stack: Stack, serve: Process) -> None:
    """The last one of the stack's."""
    tokens = 250
    lines: list[Event] = []
    ends: asyncio.Task[int] | None = None
    family: list[psutil.Process] = []
    told_at = 0.0
    body = chat("smollm2", "Write a long story.", max_tokens=tokens, ignore_eos=True)
    async for event in stream(serve.url, {**body, "stream_options": {"include_usage": True}}):
        lines.append(event)
        if event.content and ends is None:
            told_at = time.monotonic()
            family = psutil.Process(serve.pid).children(recursive=True)
            ends = asyncio.create_task(serve.terminate(within_s=120))
    assert ends is not None
    assert lines[-1].at - told_at > 3.0, "most of the stream came after the SIGTERM"
    assert lines[-1].line == "data: [DONE]"
    chunks = [event.data for event in lines if event.data]
    assert not any("error" in chunk for chunk in chunks)
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]] == ["length"]
    assert chunks[-1]["usage"]["completion_tokens"] == tokens
    assert await ends == 0
    assert len(family) >= 4, "gateway, worker, Redis, host"
    await until(lambda: not stack.members() and not any(map(lives, family)), "nothing is left", 20)
