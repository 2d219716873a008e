"""Rows of different lengths in one batch, on small models with random weights: ``generate`` says the same of each."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

from worker.engines.torch.batch import Batch  # noqa: E402 -- where torch is installed
from worker.engines.torch.model import Skeleton  # noqa: E402 -- as above
from worker.engines.torch.rows import Row  # noqa: E402 -- as above
from worker.engines.torch.sampling import Sampling  # noqa: E402 -- as above

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13], [20, 21, 22, 23]]
SIZES = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}

CONFIGS = {
    "absolute positions": lambda: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SIZES),
    "rotary positions": lambda: transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **SIZES
    ),
    "sliding window": lambda: transformers.MistralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=6,
        **SIZES,
    ),
}


def skeleton(config: Any) -> Skeleton:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    module = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in module.parameters():  # fresh weights are so small that every token is as likely
        parameter.mul_(8)
    accepts = frozenset(inspect.signature(module.forward).parameters)
    return Skeleton(module, None, config, torch.float32, True, 64, 0, frozenset(), accepts, {})


def row(index: int, prompt: list[int], most: int) -> Row:
    greedy = Sampling(temperature=0)
    return Row(index, prompt, most, greedy, stops=(), ends=frozenset(), decode=str, events=asyncio.Queue())


def generated(model: Skeleton, prompts: list[list[int]], most: int) -> list[list[int]]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.module.generate(ids, attention_mask=mask, max_new_tokens=most, do_sample=False)
    tokens: list[list[int]] = out[:, width:].tolist()
    return tokens


@pytest.mark.parametrize("name", CONFIGS)
def test_each_row_is_what_generate_makes_of_it_also_after_others_left(name: str) -> None:
    model = skeleton(CONFIGS[name]())
    together, alone = generated(model, PROMPTS, 12), [generated(model, [prompt], 12)[0] for prompt in PROMPTS]
    assert len({tuple(tokens) for tokens in together}) == 3, "the model says something of its own to each"
    rows = [row(n, prompt, 12) for n, prompt in enumerate(PROMPTS)]
    with torch.inference_mode():
        batch = Batch(model, rows)
        while batch.rows:
            kept = [n for n, token in enumerate(batch.step()) if batch.rows[n].take(token).finish is None]
            if len(rows[1].said) == 4:  # the shortest one leaves in the middle
                kept = [n for n in kept if batch.rows[n] is not rows[1]]
            batch.keep(kept)
    assert [rows[0].said, rows[2].said] == [together[0], together[2]]
    assert rows[1].said == together[1][:4]
    assert [rows[0].said, rows[2].said] == [alone[0], alone[2]]
