"""The choice of one token from the model's scores, as transformers makes it: penalties, then temperature, top-k, top-p
and min-p, then chance. A temperature of 0 takes the highest score, and so does a tie-break: the first of equals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def plain(self) -> bool:
        """The highest score as it comes from the model, whatever was said before."""
        return self.temperature == 0 and not self.penalises

    @property
    def penalises(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


class Sampler:
    """One row's. With a seed its choices depend on nothing else: not on what runs in the same batch."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self.sampling = sampling
        self._prompt = prompt
        self._chance: Any = torch.Generator()
        if sampling.seed is None:
            self._chance.seed()
        else:
            self._chance.manual_seed(sampling.seed % 2**63)

    def choose(self, scores: Any, said: Sequence[int]) -> int:
        """``scores``: float32, one for each token of the vocabulary; changed in place. ``said``: the answer so far."""
        how = self.sampling
        if how.penalises:
            self._penalise(scores, said)
        if how.temperature == 0:
            return int(scores.argmax())
        scores /= how.temperature
        if 0 < how.top_k < scores.shape[-1]:
            scores[scores < scores.topk(how.top_k).values[-1]] = -torch.inf
        if how.top_p < 1:
            _cut_tail(scores, how.top_p)
        if how.min_p > 0:
            chances = scores.softmax(-1)
            scores[chances < how.min_p * chances.max()] = -torch.inf
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._chance))

    def _penalise(self, scores: Any, said: Sequence[int]) -> None:
        how = self.sampling
        if how.repetition_penalty != 1:
            seen = torch.tensor(sorted({*self._prompt, *said}), dtype=torch.long)
            of_seen = scores[seen]
            scores[seen] = torch.where(of_seen < 0, of_seen * how.repetition_penalty, of_seen / how.repetition_penalty)
        if said and (how.presence_penalty or how.frequency_penalty):
            tokens, counts = torch.tensor(said, dtype=torch.long).unique(return_counts=True)
            scores[tokens] -= how.presence_penalty + how.frequency_penalty * counts


def _cut_tail(scores: Any, top_p: float) -> None:
    """Keep the likeliest tokens that together reach ``top_p``, at least one."""
    ordered, indices = scores.sort(descending=False)
    tail = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    tail[-1] = False
    scores[indices[tail]] = -torch.inf
