"""OpenAI's own libraries, as their documentation shows them: background responses and batches work against us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.suite import Client, asking, run
from tests.e2e.stack import Stack, fake

pytestmark = [pytest.mark.clients, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

CLIENTS = (Client("openai-python", "openai_jobs.py", "openai"), Client("openai-node", "openai_jobs.mjs"))
LINES = 100


def check(result: dict[str, Any], lines: int, *, exact: bool) -> None:
    """``exact``: of the fake engine, from cold."""
    modes = result["modes"]
    failed = {name: mode["error"] for name, mode in modes.items() if mode["error"]}
    assert not failed, "\n".join(f"{result['package']} {result['version']} {n}:\n{e}" for n, e in failed.items())
    for name in ("plain", "stream", "background_polled", "background_resumed", "batch"):
        text, prompt = modes[name]["text"], modes[name]["prompt"]
        assert text == f"The capital of France is Paris. You said: {prompt}" if exact else "Paris" in text, modes[name]
    polled = modes["background_polled"]["details"]
    assert polled["statuses"][0] == "queued" or not exact, polled
    assert set(polled["statuses"][1:]) <= {"in_progress", "completed", "incomplete"}, polled
    assert polled["usage"] > 0
    resumed = modes["background_resumed"]["details"]
    assert resumed["numbers"] == list(range(len(resumed["numbers"]))), "nothing is missed or doubled"
    assert resumed["deltas"] == modes["background_resumed"]["text"]
    assert resumed["cuts"] >= 4
    assert modes["cancelled"]["details"] == {"status": ["cancelled", "cancelled"], "then": "response_not_found"}
    batch = modes["batch"]["details"]
    assert batch["status"] == "completed"
    assert batch["counts"] == {"total": lines, "completed": lines, "failed": 0}
    assert batch["rises"], batch
    # A real engine's rounding depends on what runs beside a line.
    assert len(batch["texts"]) == 1 if exact else all("Paris" in text for text in batch["texts"]), batch["texts"]
    assert batch["ids"] == [f"request-{n}" for n in range(lines)], "in the order of the input"
    assert batch["listed"] and batch["files"] and batch["deleted"]
    refused = modes["batch_refused"]["details"]
    assert refused == {"status": "failed", "errors": [[2, "duplicate_custom_id"]]}


@pytest.mark.asyncio
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_background_and_batch_from_a_cold_model(tmp_path: Path, client: Client) -> None:
    asking(client)
    engine = fake("--start-delay", "2", "--token-delay", "0.005", slots=8)
    async with Stack(tmp_path, {"m": engine}) as stack:
        serve = await stack.start_serve()
        check(await run(client, serve.url, "m", lines=LINES), LINES, exact=True)
