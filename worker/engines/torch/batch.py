"""Rows that share each forward pass: padded on the left, one cache, one more token each a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from worker.engines.torch.model import Skeleton
from worker.engines.torch.rows import Row


class Batch:
    """Inputs are those that ``generate`` makes of the same prompts, so that a greedy answer is the same, token for
    token. Use in inference mode, in one thread."""

    def __init__(self, model: Skeleton, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self._model = model
        self._cache: Any = transformers.DynamicCache(config=model.module.config)
        self._width = width = max(len(row.prompt) for row in self.rows)
        ids = torch.full((len(self.rows), width), model.pad, dtype=torch.long)
        self._mask: Any = torch.zeros((len(self.rows), width), dtype=torch.long)
        for n, row in enumerate(self.rows):
            ids[n, width - len(row.prompt) :] = torch.tensor(row.prompt, dtype=torch.long)
            self._mask[n, width - len(row.prompt) :] = 1
        self._next: Any = ids
        self._positions: Any = (self._mask.cumsum(-1) - 1).masked_fill_(self._mask == 0, 0)

    @property
    def size(self) -> int:
        """Positions of the cache that it may come to."""
        return len(self.rows) * (self._width + max((row.most for row in self.rows), default=0))

    def step(self) -> list[int]:
        """One forward pass: the next token of each row."""
        inputs = {
            "input_ids": self._next,
            "attention_mask": self._mask,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        if "position_ids" in self._model.accepts:
            inputs["position_ids"] = self._positions
        if "logits_to_keep" in self._model.accepts:
            inputs["logits_to_keep"] = 1
        scores = self._model.module(**inputs).logits[:, -1].to(copy=True, dtype=torch.float32)
        best = scores.argmax(-1).tolist()
        tokens = [
            best[n] if row.sampler.sampling.plain else row.sampler.choose(scores[n], row.said)
            for n, row in enumerate(self.rows)
        ]
        self._next = torch.tensor(tokens, dtype=torch.long).unsqueeze(-1)
        self._mask = torch.cat((self._mask, self._mask.new_ones((len(tokens), 1))), dim=-1)
        self._positions = self._positions[:, -1:] + 1
        return tokens

    def keep(self, indices: Sequence[int]) -> None:
        """Let go of all other rows, and of their part of the cache."""
        if len(indices) == len(self.rows):
            return
        self.rows = [self.rows[n] for n in indices]
        if not self.rows:
            self._cache = None
            return
        kept = torch.tensor(indices, dtype=torch.long)
        self._cache.batch_select_indices(kept)
        self._next, self._mask, self._positions = self._next[kept], self._mask[kept], self._positions[kept]
