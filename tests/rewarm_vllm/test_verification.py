"""When the digests of mapped weights are compared: beside the start, before the first forward pass, or by a fork."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rewarm_vllm.verification import Verification  # noqa: E402 -- needs torch
from snapshots import CheckpointError, WeightsCorrupt  # noqa: E402 -- needs torch


class Mapped:
    """Counts what was read; ``wrong`` is what the comparison finds."""

    def __init__(self, wrong: CheckpointError | None = None) -> None:
        self.compared = 0
        self.wrong = wrong

    def populate(self, options: Any) -> None:
        self.compared += 1
        if self.wrong is not None:
            raise self.wrong


def verification(mapped: Any, repair: Callable[[CheckpointError], None] = lambda problem: None) -> Verification:
    return Verification(mapped, repair)


def test_the_first_forward_pass_waits_for_all_of_it() -> None:
    mapped, model = Mapped(), torch.nn.Linear(2, 2)
    verification(mapped).guard(model)
    assert mapped.compared == 0, "nothing before somebody asks: a process that is to be forked runs no thread"
    model(torch.zeros(1, 2))
    model(torch.zeros(1, 2))
    assert mapped.compared == 1


def test_what_is_wrong_is_repaired_before_anything_is_computed(tmp_path: Any) -> None:
    repaired: list[CheckpointError] = []
    mapped, model = Mapped(WeightsCorrupt(tmp_path, "flipped")), torch.nn.Linear(2, 2)
    one = verification(mapped, repaired.append)
    one.guard(model)
    one.begin()
    model(torch.zeros(1, 2))
    assert repaired == [mapped.wrong]


def test_a_fork_waives_what_was_compared_for_one_before() -> None:
    mapped, model = Mapped(), torch.nn.Linear(2, 2)
    one = verification(mapped)
    one.guard(model)
    one.waive()
    model(torch.zeros(1, 2))
    one.settle()
    assert mapped.compared == 0


def test_settling_what_was_not_begun_waits_for_nothing() -> None:
    mapped = Mapped()
    verification(mapped).settle()
    assert mapped.compared == 0
