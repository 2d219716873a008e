"""A model that cannot serve, in every way, and whoever asks for it in every way: its fallback answers and is named."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.e2e.stack import Event, Process, Stack, chat, fake, post, stream, until
from tests.snapshots.checkpoints import CONFIG, encoded, layout

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

FAILS = ("corrupt", "hungry", "exits")
REASONS = {
    "corrupt": ("weights_corrupt",),
    "hungry": ("out_of_memory", "memory_limit"),
    "exits": ("engine_exited", "start_refused"),
}


def corrupt_checkpoint(folder: Path) -> Path:
    """Its only weight file ends in the middle."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    header, size = layout({"model.embed_tokens.weight": ("BF16", [1000, 64])})
    (folder / "model.safetensors").write_bytes(encoded(header, size)[: size // 2])
    return folder


def models(folder: Path) -> dict[str, Any]:
    quick: dict[str, Any] = {"load_attempts": 1, "retry_backoff": "100ms", "failure_memory": "10m", "idle_after": "1h"}
    broken = {
        "corrupt": {"engine": "torch", "source": str(corrupt_checkpoint(folder / "corrupt")), **quick},
        "hungry": fake("--allocate-mb", "300", memory_limit="150MiB", **quick),
        "exits": fake("--exit-at-start", "3", **quick),
        "late": fake("--start-delay", "100", fallback_after="1s", starting_stall="5m"),
    }
    alone = {f"{name}-alone": model for name, model in broken.items() if name in FAILS}
    return {
        "small": fake(),
        **{name: {**model, "fallback": ["small"]} for name, model in broken.items()},
        **alone,
        "hopeless": {**broken["corrupt"], "fallback": ["exits-alone"]},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    folder = tmp_path_factory.mktemp("fallback")
    async with Stack(folder / "stack", models(folder)) as stack:
        await stack.start_redis()
        gateway = await stack.start_gateway(holding={"stream_status_after": "300ms"})
        await stack.start_worker()
        yield gateway


def expected(model: str) -> str:
    return "cut_over" if model == "late" else "model_load_failed"


@pytest.mark.parametrize("model", [*FAILS, "late"])
async def test_for_a_stream(gateway: Process, model: str) -> None:
    """The first one is held while its model fails, so that the stream has begun: all is told in it."""
    seen: list[Event] = [event async for event in stream(gateway.url, chat(model))]
    assert f": fallback from={model} to=small reason={expected(model)}" in [event.line for event in seen]
    chunks = [event.data for event in seen if event.data]
    assert "Paris" in "".join(event.content for event in seen)
    told = [chunk["rewarm"] for chunk in chunks if "rewarm" in chunk]
    assert all(
        one["fallback"] == {"from": model, "to": "small", "reason": expected(model)} and one["model"] == "small"
        for one in told
    )
    spoken = [chunk for chunk in chunks if chunk["choices"][0]["delta"].get("content")]
    assert {chunk["model"] for chunk in spoken} == {"small"}
    assert seen[-1].line == "data: [DONE]"


@pytest.mark.parametrize("model", [*FAILS, "late"])
async def test_for_a_plain_request(gateway: Process, model: str) -> None:
    status, body, headers = await post(gateway.url, chat(model))
    assert (status, body["model"], headers["x-rewarm-model"]) == (200, "small", "small")
    assert headers["x-rewarm-fallback"] == f"{model}; reason={expected(model)}"
    receipt = await get(gateway.url, f"/v1/requests/{headers['x-request-id']}")
    assert (receipt["model"], receipt["served_model"], receipt["fallback"]) == (model, "small", expected(model))


@pytest.mark.parametrize("model", [*FAILS, "late"])
async def test_for_a_job(gateway: Process, model: str) -> None:
    status, job, _ = await post(gateway.url, chat(model), path="/v1/jobs")
    assert status == 202
    job = await ended(gateway.url, job["id"])
    assert (job["status"], job["model"], job["served_model"]) == ("completed", model, "small")
    assert job["fallback"] == {"from": model, "to": "small", "reason": expected(model)}
    async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}{job['result_url']}") as answer:
        assert answer.headers["X-Rewarm-Model"] == "small"
        assert answer.headers["X-Rewarm-Fallback"] == f"{model}; reason={expected(model)}"
        assert (await answer.json())["model"] == "small"
    async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}{job['events_url']}") as answer:
        text = await answer.text()
    end = json.loads(text.split("event: end\n")[1].split("data: ")[1].splitlines()[0])
    assert end["fallback"]["to"] == "small"


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("model", [*(f"{name}-alone" for name in FAILS), "hopeless"])
async def test_with_nobody_left_the_error_comes_within_a_second(gateway: Process, model: str, streams: bool) -> None:
    await failed(gateway, model)
    if model == "hopeless":
        await failed(gateway, "exits-alone")
    began = time.monotonic()
    status, body, headers = await post(gateway.url, chat(model, stream=streams))
    assert time.monotonic() - began < 1
    assert (status, body["error"]["code"], headers["x-should-retry"]) == (500, "model_load_failed", "false")
    assert body["reason"] in REASONS["corrupt" if model == "hopeless" else model.removesuffix("-alone")]
    if model == "hopeless":
        assert [told["model"] for told in body["fallbacks"]] == ["exits-alone"]


async def failed(gateway: Process, model: str) -> None:
    """Its load was tried, and failed."""

    async def known() -> bool:
        return bool((await get(gateway.url, f"/v1/models/{model}"))["rewarm"].get("failure"))

    if not await known():
        await asyncio.wait_for(post(gateway.url, chat(model)), 60)
        await until(known, f"{model} is known to fail", 10)


async def ended(url: str, id_: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        job = await get(url, f"/v1/jobs/{id_}")
        return job if job["ended_at"] else None

    job: dict[str, Any] = await until(there, f"{id_} has ended", 60)
    return job


async def get(url: str, path: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(url + path) as answer:
        out: dict[str, Any] = await answer.json()
        return out
