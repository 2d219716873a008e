"""Clients on a real engine: chats that meet it cold, together; then responses in the background and batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients import test_jobs
from tests.clients.suite import CLIENTS, asking, run
from tests.clients.test_clients import check
from tests.e2e.real import NO_POOL, vllm
from tests.e2e.stack import Process, Stack

pytestmark = [
    *(pytest.mark.clients, pytest.mark.vllm, pytest.mark.redis, pytest.mark.slow),
    *(pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")),
]

CHATS = ("openai-python", "openai-python-1", "openai-node", "ai-sdk", "langchain-python", "parsers", "curl")
LINES = 20  # of a batch: each costs the engine's time


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def serve(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    async with Stack(tmp_path_factory.mktemp("clients"), {"smollm2": vllm(smollm2, slots=8)}, pool=NO_POOL) as stack:
        yield await stack.start_serve()


async def test_clients_get_their_answers_from_a_cold_model(serve: Process) -> None:
    clients = [asking(client) for client in CLIENTS if client.name in CHATS]
    results = await asyncio.gather(*(run(client, serve.url, "smollm2", within_s=300) for client in clients))
    for result in results:
        check(result, None, 0.0)
    waited = [mode["seconds"] for result in results for mode in result["modes"].values()]
    assert max(waited) > 3.0, "they met a cold model"


async def test_background_and_batch(serve: Process) -> None:
    clients = [asking(client) for client in test_jobs.CLIENTS]
    asked = (run(client, serve.url, "smollm2", within_s=300, lines=LINES) for client in clients)
    for result in await asyncio.gather(*asked):
        test_jobs.check(result, LINES, exact=False)
