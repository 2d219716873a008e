"""Real models behind a real gate: the answers are transformers' own, token for token."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rewarm.upstream import UpstreamDied
from tests.worker.conftest import until
from tests.worker.torch.conftest import Direct, Engine, engine_on

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(180), pytest.mark.asyncio]

QUESTIONS = ["What is the capital of France?", "Count from one to ten.", "Why is the sky blue?", "Say hello in German."]
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def engine(small: Any, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine_on(small, tmp_path) as engine:
        yield engine


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_greedy_answer_is_that_of_generate(engine: Engine, direct: Direct, question: str) -> None:
    (expected,) = direct.generate([direct.chat(question)], 16)
    answer = await engine.chat(question, max_tokens=16, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == expected
    assert choice["message"] == {"role": "assistant", "content": direct.text(expected)}
    assert choice["finish_reason"] == ("length" if len(expected) == 16 and expected[-1] != 2 else "stop")
    prompt = len(direct.chat(question))
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": len(expected),
        "total_tokens": prompt + len(expected),
    }
    assert answer["object"] == "chat.completion" and answer["model"] == "small"


async def test_requests_of_one_moment_share_their_forward_passes(small: Any, direct: Direct, tmp_path: Path) -> None:
    async with engine_on(small, tmp_path, window_s=0.3) as engine:
        together = [engine.chat(q, max_tokens=12, return_token_ids=True) for q in QUESTIONS]
        answers = await asyncio.gather(*together)
        assert engine.batches == [4]
    expected = direct.generate([direct.chat(question) for question in QUESTIONS], 12)
    assert [answer["choices"][0]["token_ids"] for answer in answers] == expected


async def test_a_full_house_does_not_wait_for_the_window(small: Any, tmp_path: Path) -> None:
    async with engine_on(small, tmp_path, slots=2, window_s=60) as engine:
        await asyncio.gather(*(engine.chat(question, max_tokens=2) for question in QUESTIONS[:2]))
        assert engine.batches == [2]


async def test_who_comes_later_does_not_wait_for_the_end_of_those_before(engine: Engine) -> None:
    long = await engine.open(CHAT, _long())
    assert await long.next()
    await engine.chat(QUESTIONS[0], max_tokens=4)
    assert not long.complete
    await until(lambda: engine.gate.state.running == 1, "only the long one still runs", 5)
    assert engine.batches == [1, 1]
    long.abort()


async def test_a_completion_of_several_prompts(engine: Engine, direct: Direct) -> None:
    texts = ["The capital of France is", "One, two, three,"]
    prompts = [direct.tokenizer(text)["input_ids"] for text in texts]
    expected = direct.generate(prompts, 8)
    answer = await engine.complete(texts, max_tokens=8, return_token_ids=True)
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    assert [choice["text"] for choice in answer["choices"]] == [direct.text(tokens) for tokens in expected]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1] and answer["object"] == "text_completion"
    assert engine.batches == [2]
    tokens = await engine.complete(prompts[0], max_tokens=8)
    assert tokens["choices"][0]["text"] == answer["choices"][0]["text"]
    assert tokens["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("include_usage", [False, True])
async def test_a_stream_is_the_same_answer_in_pieces(engine: Engine, include_usage: bool) -> None:
    whole = await engine.chat(QUESTIONS[1], max_tokens=16)
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    body = {"messages": [{"role": "user", "content": QUESTIONS[1]}], "max_tokens": 16, "temperature": 0, **options}
    chunks = await engine.stream(CHAT, **body)
    assert chunks[-1] == "[DONE]"
    usage = chunks[-2]
    if include_usage:
        assert usage["choices"] == [] and usage["usage"] == whole["usage"]
        assert all(chunk["usage"] is None for chunk in chunks[:-2])
    else:
        assert not any("usage" in chunk for chunk in chunks[:-1])
    choices = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["delta"].get("content", "") for c in choices) == whole["choices"][0]["message"]["content"]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == [whole["choices"][0]["finish_reason"]]
    assert len(choices) > 10
    assert {chunk["object"] for chunk in chunks[:-1]} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks[:-1]}) == 1


async def test_a_completion_streams_too(engine: Engine) -> None:
    whole = await engine.complete("Once upon a time", max_tokens=12)
    chunks = await engine.stream("/v1/completions", prompt="Once upon a time", max_tokens=12, temperature=0)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == whole["choices"][0]["text"]


async def test_a_stop_string_ends_the_answer_and_is_not_in_it(engine: Engine) -> None:
    answer = await engine.chat(QUESTIONS[0], max_tokens=16, stop=[" of France", "never"])
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "The capital" and choice["finish_reason"] == "stop"
    chunks = await engine.stream(
        CHAT,
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        temperature=0,
        max_tokens=16,
        stop=" of France",
    )
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == "The capital"


async def test_a_seed_gives_the_same_answer_alone_and_in_company(small: Any, tmp_path: Path) -> None:
    body = {"temperature": 1.2, "top_p": 0.95, "seed": 11, "max_tokens": 12, "return_token_ids": True}
    async with engine_on(small, tmp_path, window_s=0.2) as engine:
        alone = await engine.chat(QUESTIONS[2], **body)
        others = [engine.chat(question, temperature=1.0, max_tokens=12) for question in QUESTIONS[:2]]
        crowded, *_ = await asyncio.gather(engine.chat(QUESTIONS[2], **body), *others)
        assert engine.batches[-1] == 3
        greedy = await engine.chat(QUESTIONS[2], max_tokens=12, return_token_ids=True)
    assert crowded["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]
    assert greedy["choices"][0]["token_ids"] != alone["choices"][0]["token_ids"]


async def test_an_answer_ends_at_the_context(engine: Engine) -> None:
    prompt = [1] + [500] * 115
    answer = await engine.complete(prompt, max_tokens=12, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 128 and answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (CHAT, b"{", 400, "invalid_json"),
        (CHAT, {"model": "small"}, 400, "invalid_request"),
        (CHAT, {"model": "other", "messages": [{"role": "user", "content": "x"}]}, 404, "model_not_found"),
        (CHAT, {"model": "small", "messages": [{"role": "user", "content": "x"}], "n": 3}, 400, "not_supported"),
        ("/v1/completions", {"model": "small", "prompt": [1] * 128}, 400, "context_length_exceeded"),
        ("/v1/completions", {"model": "small", "prompt": [1] * 126, "max_tokens": 9}, 400, "context_length_exceeded"),
        ("/v1/completions", {"model": "small", "prompt": [49152]}, 400, "invalid_request"),
        ("/v1/completions", {"model": "small", "prompt": [-1]}, 400, "invalid_request"),
        ("/v1/embeddings", {"model": "small", "input": "x"}, 400, "not_supported"),
        ("/v1/responses", {"model": "small", "input": "x"}, 404, "not_found"),
    ],
)
async def test_bad_input_gets_a_typed_error_and_a_free_slot(
    engine: Engine, path: str, body: Any, status: int, code: str
) -> None:
    import json

    response = await engine.open(path, body)
    answer = json.loads(await response.read(2**20))
    assert (response.status, answer["error"]["code"]) == (status, code), answer
    assert answer["error"]["type"] == "invalid_request_error" and answer["error"]["message"]
    assert engine.gate.state.running == 0


# --- clients that leave, engines that fail ---------------------------------------------------------------------------


def _long(tokens: int = 85) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Tell me a long story."}]
    return {"model": "small", "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True}


async def test_who_leaves_frees_the_row_and_the_slot(engine: Engine) -> None:
    streams = [await engine.open(CHAT, _long()) for _ in range(3)]
    for stream in streams:
        assert await stream.next()
    streams[1].abort()
    await until(lambda: engine.gate.state.running == 2, "the slot of the one that left is free", 5)
    assert sum(len(batch.rows) for batch in engine.runner._batches) == 2
    for stream in (streams[0], streams[2]):
        assert await stream.next(), "the others go on"
        stream.abort()
    await until(lambda: engine.gate.state.running == 0 and not engine.runner._batches, "nothing runs", 5)


async def test_a_plain_request_is_cancelled_too(engine: Engine) -> None:
    task = asyncio.create_task(engine.open(CHAT, {**_long(), "stream": False}))
    await until(lambda: engine.gate.state.running == 1 and engine.runner._batches, "it runs", 5)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await until(lambda: engine.gate.state.running == 0 and not engine.runner._batches, "nothing runs", 5)


async def test_what_has_no_room_in_the_cache_waits_its_turn(small: Any, tmp_path: Path) -> None:
    async with engine_on(small, tmp_path, room=140) as engine:
        answers = await asyncio.gather(*(engine.chat(question, max_tokens=12) for question in QUESTIONS))
        assert all(answer["choices"][0]["message"]["content"] for answer in answers)
        assert len(engine.batches) >= 2 and max(engine.batches) < 4


class _Breaks:
    """In place of a module: runs out of memory at its n-th forward pass."""

    def __init__(self, module: Any, at: int) -> None:
        self._module = module
        self._left = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __call__(self, **inputs: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )
        return self._module(**inputs)


async def test_a_failed_forward_pass_is_a_typed_error_and_cuts_a_stream(small: Any, tmp_path: Path) -> None:
    import dataclasses

    broken = dataclasses.replace(small, module=_Breaks(small.module, 3))
    async with engine_on(broken, tmp_path) as engine:
        stream = await engine.open(CHAT, _long())
        with pytest.raises(UpstreamDied):  # without [DONE], and without an end that looks whole
            await stream.read(2**20)
        status, answer = await engine.ask(CHAT, messages=[{"role": "user", "content": "x"}])
        assert (status, answer["error"]["code"]) == (500, "engine_failed")
        assert "allocate" in answer["error"]["message"]
        assert not engine.runner.broken.done()
        await engine.ask(CHAT, messages=[{"role": "user", "content": "x"}])
        assert "3 batches in a row failed" in await asyncio.wait_for(engine.runner.broken, 5)
        assert engine.gate.state.running == 0


# --- embeddings ------------------------------------------------------------------------------------------------------

TEXTS = ["A cat sits on the mat.", "Ein Hund.", "The stock market fell sharply today, and nobody knew why it did.", "x"]


def reference(minilm: Path, texts: list[str]) -> list[list[float]]:
    """As sentence-transformers' model card writes it."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm)
    encoded = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**encoded)[0]
    mask = encoded["attention_mask"].unsqueeze(-1).expand(states.size()).float()
    vectors = torch.sum(states * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)
    out: list[list[float]] = torch.nn.functional.normalize(vectors, p=2, dim=1).tolist()
    return out


async def test_embeddings_are_those_of_transformers(encoder: Any, minilm: Path, tmp_path: Path) -> None:
    expected = reference(minilm, TEXTS)
    async with engine_on(encoder, tmp_path) as engine:
        status, answer = await engine.ask("/v1/embeddings", input=TEXTS)
        assert status == 200 and answer["object"] == "list"
        for n, (found, wanted) in enumerate(zip(answer["data"], expected, strict=True)):
            assert found["index"] == n and found["embedding"] == pytest.approx(wanted, abs=1e-6)
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 20
        status, one = await engine.ask("/v1/embeddings", input=TEXTS[2], encoding_format="base64")
        raw = base64.b64decode(one["data"][0]["embedding"])
        assert struct.unpack("<384f", raw) == pytest.approx(expected[2], abs=1e-6)
        status, ids = await engine.ask("/v1/embeddings", input=[101, 1060, 102])
        assert ids["data"][0]["embedding"] == pytest.approx(expected[3], abs=1e-6)


async def test_embeddings_of_one_moment_share_a_forward_pass(encoder: Any, minilm: Path, tmp_path: Path) -> None:
    expected = reference(minilm, TEXTS)
    async with engine_on(encoder, tmp_path, window_s=0.3) as engine:
        answers = await asyncio.gather(*(engine.ask("/v1/embeddings", input=text) for text in TEXTS))
        assert engine.batches == [4]
    for (status, answer), wanted in zip(answers, expected, strict=True):
        assert status == 200 and answer["data"][0]["embedding"] == pytest.approx(wanted, abs=1e-6)


async def test_many_inputs_of_every_length_keep_their_order(encoder: Any, tmp_path: Path) -> None:
    inputs = [[101, *[1060 + n % 7] * (n * 37 % 500), 102] for n in range(80)]
    async with engine_on(encoder, tmp_path) as engine:
        _, together = await engine.ask("/v1/embeddings", input=inputs)
        for n in (0, 13, 79):
            _, alone = await engine.ask("/v1/embeddings", input=[inputs[n]])
            assert together["data"][n]["embedding"] == pytest.approx(alone["data"][0]["embedding"], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/embeddings", {"input": []}, "invalid_request"),
        ("/v1/embeddings", {"input": "x", "dimensions": 64}, "not_supported"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, "invalid_request"),
        ("/v1/embeddings", {"input": [[101] * 513]}, "context_length_exceeded"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, "not_supported"),
        ("/v1/completions", {"prompt": "x"}, "not_supported"),
    ],
)
async def test_what_an_encoder_refuses(encoder: Any, tmp_path: Path, path: str, body: Any, code: str) -> None:
    async with engine_on(encoder, tmp_path) as engine:
        status, answer = await engine.ask(path, **body)
        assert (status, answer["error"]["code"]) == (400, code)
