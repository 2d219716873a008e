"""Texts as vectors: an encoder's last hidden state, pooled over each text's own tokens, of length 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from worker.engines.torch.model import Skeleton

_MOST_TOKENS = 16 * 1024
"""Padding included: more at once brings nothing on a CPU, and memory for it would not be counted."""


def embed(model: Skeleton, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
    """One forward pass. Use in inference mode."""
    width = max(map(len, inputs))
    ids = torch.full((len(inputs), width), model.pad, dtype=torch.long)
    mask = torch.zeros((len(inputs), width), dtype=torch.long)
    for n, tokens in enumerate(inputs):
        ids[n, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
        mask[n, : len(tokens)] = 1
    states = model.module(input_ids=ids, attention_mask=mask).last_hidden_state.float()
    vectors = _pooled(states, mask, model.pooling)
    out: list[list[float]] = torch.nn.functional.normalize(vectors, dim=-1).tolist()
    return out


def _pooled(states: Any, mask: Any, pooling: str) -> Any:
    if pooling == "cls":
        return states[:, 0]
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1)


def portions(inputs: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Indices of inputs that share a forward pass: of like length together, so that little of it is padding."""
    portion: list[int] = []
    width = 0
    for n in sorted(range(len(inputs)), key=lambda n: len(inputs[n])):
        width = max(width, len(inputs[n]))
        if portion and width * (len(portion) + 1) > _MOST_TOKENS:
            yield portion
            portion, width = [], len(inputs[n])
        portion.append(n)
    if portion:
        yield portion
