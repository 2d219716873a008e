"""OpenAI's own libraries, as their documentation shows them: background responses and batches work against us."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.clients.suite import SETUP, Client, run
from tests.e2e.stack import Stack, fake

pytestmark = [pytest.mark.clients, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

CLIENTS = (Client("openai-python", "openai_jobs.py", "openai"), Client("openai-node", "openai_jobs.mjs"))


def check(result: dict[str, Any], *, exact: bool) -> None:
    modes = result["modes"]
    failed = {name: mode["error"] for name, mode in modes.items() if mode["error"]}
    assert not failed, "\n".join(f"{result['package']} {result['version']} {n}:\n{e}" for n, e in failed.items())
    for name in ("plain", "stream", "background_polled", "background_resumed", "batch"):
        text, prompt = modes[name]["text"], modes[name]["prompt"]
        assert text == f"The capital of France is Paris. You said: {prompt}" if exact else "Paris" in text, modes[name]
    polled = modes["background_polled"]["details"]
    assert polled["statuses"][0] == "queued", polled
    assert set(polled["statuses"][1:]) <= {"in_progress", "completed", "incomplete"}, polled
    assert polled["usage"] > 0
    resumed = modes["background_resumed"]["details"]
    assert resumed["numbers"] == list(range(len(resumed["numbers"]))), "nothing is missed or doubled"
    assert resumed["deltas"] == modes["background_resumed"]["text"]
    assert resumed["cuts"] >= 4
    assert modes["cancelled"]["details"] == {"status": ["cancelled", "cancelled"], "then": "response_not_found"}
    batch = modes["batch"]["details"]
    assert batch["status"] == "completed"
    assert batch["counts"] == {"total": 100, "completed": 100, "failed": 0}
    assert batch["rises"], batch
    # A real engine's rounding depends on what runs beside a line.
    assert len(batch["texts"]) == 1 if exact else all("Paris" in text for text in batch["texts"]), batch["texts"]
    assert batch["ids"] == [f"request-{n}" for n in range(100)], "in the order of the input"
    assert batch["listed"] and batch["files"] and batch["deleted"]
    refused = modes["batch_refused"]["details"]
    assert refused == {"status": "failed", "errors": [[2, "duplicate_custom_id"]]}


def asking(client: Client) -> Client:
    if not client.installed:
        pytest.skip(f"{client.name} is not installed: {SETUP}")
    return client


@pytest.mark.asyncio
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_background_and_batch_from_a_cold_model(tmp_path: Path, client: Client) -> None:
    asking(client)
    engine = fake("--start-delay", "2", "--token-delay", "0.005", slots=8)
    async with Stack(tmp_path, {"m": engine}) as stack:
        serve = await stack.start_serve()
        check(await run(client, serve.url, "m"), exact=True)


@pytest.mark.vllm
@pytest.mark.asyncio
@pytest.mark.timeout(500)
async def test_background_and_batch_on_a_real_vllm(tmp_path: Path, smollm2: Path) -> None:
    clients = [asking(client) for client in CLIENTS]
    model = {"engine": "vllm", "source": str(smollm2), "context_length": 1024, "slots": 8, "idle_after": "1h"}
    async with Stack(tmp_path, {"smollm2": model}) as stack:
        serve = await stack.start_serve()
        results = await asyncio.gather(*(run(each, serve.url, "smollm2", within_s=450) for each in clients))
        for result in results:
            check(result, exact=False)
