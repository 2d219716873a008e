"""Every client that people use gets the right answer from a model at zero, without a special setting and an exception.

Each client meets a cold model of its own; all its modes (streaming and not, blocking and async) ask at once. It is run
with three gateways: one with the default timing; one whose intervals are so short that every form of progress comes
while the model loads (comments, no-op chunks again and again, whitespace before plain JSON); and one where no-op chunks
with progress are the default.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.clients.suite import CLIENTS, Client, asking, run
from tests.e2e.stack import Process, Stack, fake

pytestmark = [pytest.mark.clients, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(180)]

HURRIED = {
    "stream_status_after": "500ms",
    "comment_every": "500ms",
    "chunk_first_after": "1s",
    "chunk_every": "1s",
    "plain_status_after": "1500ms",
    "pad_every": "500ms",
}
START_DELAY_S = {"default": 6.0, "every form": 4.0, "chunks": 3.0}
GATEWAY: dict[str, dict[str, Any]] = {
    "default": {},
    "every form": {"holding": HURRIED},
    "chunks": {"progress": "chunks", "holding": HURRIED},
}


@dataclass
class Cold:
    """A running gateway with one cold model for each client."""

    variant: str
    process: Process

    @property
    def url(self) -> str:
        return self.process.url

    @property
    def start_delay_s(self) -> float:
        return START_DELAY_S[self.variant]

    async def state(self, model: str) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/v1/models") as answer:
            listed = {entry["id"]: entry for entry in (await answer.json())["data"]}
            return str(listed[model]["rewarm"]["state"])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(GATEWAY))
async def cold(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cold]:
    variant: str = request.param
    engine = fake("--start-delay", str(START_DELAY_S[variant]), "--token-delay", "0.01", slots=8, idle_after="1s")
    folder: Path = tmp_path_factory.mktemp("clients")
    async with Stack(folder, {client.name: engine for client in CLIENTS}, gateway=GATEWAY[variant]) as stack:
        yield Cold(variant, await stack.start_serve())


def check(result: dict[str, Any], text: str | None, at_least_s: float) -> None:
    """No mode failed, each gave ``text`` (None: something about Paris), each waited for the load."""
    failed = {name: mode["error"] for name, mode in result["modes"].items() if mode["error"]}
    assert not failed, "\n".join(f"{result['package']} {result['version']} {n}:\n{e}" for n, e in failed.items())
    for name, mode in result["modes"].items():
        if text is None:
            assert "Paris" in mode["text"], (name, mode)
        else:
            assert mode["text"] == text.format(prompt=mode["prompt"]), (name, mode)
        assert mode["role"] in (None, "assistant"), (name, mode)
        assert mode["seconds"] >= at_least_s, f"{name} did not meet a cold model: {mode}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_client_gets_its_answer_from_a_cold_model(cold: Cold, client: Client) -> None:
    asking(client)
    assert await cold.state(client.name) == "cold"
    result = await run(client, cold.url, client.name)
    check(result, "The capital of France is Paris. You said: {prompt}", cold.start_delay_s * 0.8)
    if client.name == "parsers":
        shows_progress(cold, result)


def shows_progress(cold: Cold, result: dict[str, Any]) -> None:
    """What the two readers of the wire saw is what this variant is there to show."""
    stream, plain = (result["modes"][name]["details"] for name in ("strict_lines", "plain"))
    assert stream["first_s"] < 3.0, "the first sign comes within 3 s"
    assert stream["longest_gap_s"] < 5.0, "no gap is over 5 s"
    if cold.variant == "default":
        assert stream["comments"], "comments while it loads"
        assert stream["noops"] >= 1, "a no-op chunk before real data"
        assert plain["padding"] == 0, "a plain answer is held silently at first"
        assert plain["first_s"] >= cold.start_delay_s * 0.8
    elif cold.variant == "every form":
        assert len(stream["comments"]) >= 3
        assert stream["noops"] >= 3
        assert plain["padding"] >= 3
        assert plain["first_s"] < 3.0
    else:
        assert stream["noops"] >= 3
