"""LoRA adapters on the real engine: one load for the base and all of its adapters, and each gives its own answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rewarm.paths import Paths
from snapshots import Flavour, Store
from tests.e2e.adapters import expected_tokens, make_adapter
from tests.e2e.real import vllm
from tests.e2e.stack import Process, Stack, chat, post, until
from tests.e2e.test_swapping import command, loads

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.timeout(500)]

PROMPT, TOKENS = "The capital of France is", 8


async def ask(gateway: Process, model: str) -> tuple[str, list[int]]:
    """The model that the answer names, and its tokens."""
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS, "return_token_ids": True}
    status, answer, _ = await post(gateway.url, body, path="/v1/completions")
    assert status == 200, answer
    return answer["model"], answer["choices"][0]["token_ids"]


async def job(gateway: Process, model: str) -> dict[str, Any]:
    """One that has ended."""
    status, told, _ = await post(gateway.url, chat(model, max_tokens=4), path="/v1/jobs")
    assert status == 202, told

    async def over() -> dict[str, Any] | None:
        async with aiohttp.ClientSession() as http, http.get(f"{gateway.url}{told['status_url']}") as answer:
            seen: dict[str, Any] = await answer.json()
            return seen if seen["ended_at"] is not None else None

    out: dict[str, Any] = await until(over, f"the job for {model} has ended", 60)
    return out


def packed(store: Store) -> bool:
    return any(entry.manifest is not None and entry.manifest.flavour is Flavour.PACKED for entry in store.list())


async def asleep(stack: Stack, serve: Process) -> bool:
    return await stack.replica_states(serve, "base") == ["asleep"]


@pytest.mark.asyncio
async def test_a_base_and_its_adapters_asked_in_turns_from_zero_are_one_load(tmp_path: Path, smollm2: Path) -> None:
    loud, quiet = (make_adapter(tmp_path / name, smollm2, seed) for seed, name in enumerate(("loud", "quiet")))
    broken = make_adapter(tmp_path / "broken", smollm2, 7)
    (broken / "adapter_config.json").write_text("{")
    models: dict[str, Any] = {
        "base": vllm(smollm2, context_length=256, snapshot="auto"),
        "loud": {"adapter_of": "base", "source": str(loud), "aliases": ["loudest"]},
        "quiet": {"adapter_of": "base", "source": str(quiet)},
        "broken": {"adapter_of": "base", "source": str(broken)},
    }
    right = {
        name: expected_tokens(smollm2, folder, PROMPT, TOKENS)
        for name, folder in (("base", None), ("loud", loud), ("quiet", quiet))
    }
    assert len({tuple(tokens) for tokens in right.values()}) == 3, "the adapters change what is answered"
    async with Stack(tmp_path / "stack", models) as stack:
        serve = await stack.start_serve()
        turns = ["loud", "base", "quiet", "loudest", "base", "quiet", "loud"]
        answers = await asyncio.gather(*(ask(serve, model) for model in turns))
        for turn, (named, tokens) in zip(turns, answers, strict=True):
            name = "loud" if turn == "loudest" else turn
            assert (named, tokens) == (name, right[name])
        _, refused, _ = await post(serve.url, {"model": "broken", "prompt": PROMPT}, path="/v1/completions")
        assert refused["error"]["code"] == "adapter_load_failed"
        assert "adapter_config.json" in refused["error"]["message"]
        done, failed = await asyncio.gather(job(serve, "loudest"), job(serve, "broken"))
        assert (done["status"], done["served_model"], done["fallback"]) == ("completed", "loud", None)
        assert failed["status"] == "failed" and "adapter_load_failed" in failed["error"]["message"]
        replicas = await stack.replicas(serve, "base")
        assert [(one["state"], one["adapters"]["loud"]) for one in replicas] == [("ready", "")]
        assert loads(stack) == ["base"], "one load for all of them"

        # The same from the snapshot that the first load made, and out of sleep.
        store = Store(Paths.at(stack.folder / f"state-{serve.name}").snapshots)
        await until(lambda: packed(store), "the first load made a snapshot", 180)
        await command(stack, serve, "drain", "base")
        await until(lambda: not stack.engines(), "it has stopped", 60)
        for model, tokens in right.items():
            assert await ask(serve, model) == (model, tokens)
        (replica,) = await stack.replicas(serve, "base")
        assert replica["weights"].startswith("packed") and replica["can_sleep"], replica
        await command(stack, serve, "sleep", "base")
        await until(lambda: asleep(stack, serve), "it sleeps", 60)
        for model, tokens in right.items():
            assert await ask(serve, model) == (model, tokens)
