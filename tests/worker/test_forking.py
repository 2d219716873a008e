"""When torch forbids a fork."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from worker.engines.forking import torch_forbids_forking


def loaded(*, threads: int = 1, cuda: bool = False) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: cuda), get_num_threads=lambda: threads)


@pytest.mark.parametrize(
    ("torch", "limit", "why"),
    [
        (None, None, ""),
        (loaded(), "1", ""),
        (loaded(), None, "OpenMP may use 1 threads"),
        (loaded(threads=2), "1", "OpenMP may use 2 threads"),
        (loaded(cuda=True), "1", "CUDA is initialised"),
    ],
)
def test_why_not(torch: SimpleNamespace | None, limit: str | None, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", torch)
    if limit is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert torch_forbids_forking() == why
