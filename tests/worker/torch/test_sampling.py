"""The choice of a token, compared with transformers' own processors."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
processors: Any = pytest.importorskip("transformers.generation.logits_process")

from worker.engines.torch.sampling import Sampler, Sampling, _cut_tail  # noqa: E402 -- where torch is installed

PROMPT = [3, 4, 5]


def scores(seed: int = 0, size: int = 50) -> Any:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 3


def test_a_temperature_of_zero_takes_the_highest_score() -> None:
    given = scores()
    assert Sampler(Sampling(temperature=0), PROMPT).choose(given.clone(), []) == int(given.argmax())


def test_a_seed_makes_the_same_choices_again() -> None:
    one, two = (Sampler(Sampling(seed=7), PROMPT) for _ in range(2))
    chosen = [one.choose(scores(n), []) for n in range(20)]
    assert chosen == [two.choose(scores(n), []) for n in range(20)]
    other = Sampler(Sampling(seed=8), PROMPT)
    assert chosen != [other.choose(scores(n), []) for n in range(20)]


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9])
def test_top_p_cuts_what_transformers_cuts(top_p: float) -> None:
    for seed in range(20):
        ours = scores(seed)
        theirs = processors.TopPLogitsWarper(top_p)(None, ours.clone().unsqueeze(0))[0]
        _cut_tail(ours, top_p)
        assert torch.equal(ours, theirs)


def test_top_k_and_min_p_leave_only_their_tokens() -> None:
    for seed in range(50):
        given = scores(seed)
        best = set(given.topk(3).indices.tolist())
        assert Sampler(Sampling(temperature=2, top_k=3), PROMPT).choose(given.clone(), []) in best
        likely = set((given.softmax(-1) >= 0.5 * given.softmax(-1).max()).nonzero().flatten().tolist())
        assert Sampler(Sampling(min_p=0.5), PROMPT).choose(given.clone(), []) in likely


def test_repetition_is_punished_as_transformers_does() -> None:
    said = [7, 8, 7]
    for seed in range(20):
        given = scores(seed)
        ids = torch.tensor([[*PROMPT, *said]])
        theirs = processors.RepetitionPenaltyLogitsProcessor(3.0)(ids, given.clone().unsqueeze(0))[0]
        ours = Sampler(Sampling(temperature=0, repetition_penalty=3.0), PROMPT).choose(given.clone(), said)
        assert ours == int(theirs.argmax())


def test_presence_counts_once_and_frequency_each_time() -> None:
    given = torch.tensor([1.0, 0.9, 0.0])
    assert Sampler(Sampling(temperature=0, presence_penalty=0.2), PROMPT).choose(given.clone(), [0, 0, 0]) == 1
    assert Sampler(Sampling(temperature=0, presence_penalty=0.05), PROMPT).choose(given.clone(), [0, 0, 0]) == 0
    assert Sampler(Sampling(temperature=0, frequency_penalty=0.05), PROMPT).choose(given.clone(), [0, 0, 0]) == 1


def test_every_token_is_chosen_as_often_as_it_is_likely() -> None:
    given = torch.tensor([0.7, 0.2, 0.1]).log()
    sampler = Sampler(Sampling(seed=1), PROMPT)
    chosen = [sampler.choose(given.clone(), []) for _ in range(3000)]
    for token, chance in enumerate((0.7, 0.2, 0.1)):
        assert chosen.count(token) / 3000 == pytest.approx(chance, abs=0.04)
