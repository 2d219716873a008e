"""The tests of ``test_loads`` on a model of 2.93 GB with made-up weights, which takes minutes and 12 GB of disk:

    python -m tests.rewarm_vllm.large [--folder DIR]

Every flavour, and stock vLLM's ``sharded_state`` on our sharded snapshot, against stock vLLM on the checkpoint: greedy
tokens and log-probabilities of the same prompts. Exit status 1 where one differs. The model is nonsense on purpose: its
near ties show a difference that a trained model would hide.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._synthetic import make
from snapshots import Flavour, Reference, Store, capture_checkpoint
from tests.rewarm_vllm.engines import Answers, engines

ORDER = ("packed", "sharded", "portable")
_OPTIONS: dict[str, Any] = {"max_model_len": 512}


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def main() -> int:
    given = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    given.add_argument("--folder", type=Path, help="kept, with the model in it; by default a temporary one")
    given.add_argument("--like", type=Path, default=Path("models/smollm2"), help="whose tokenizer to take")
    options = given.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return run(options.folder, options.like)
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), options.like)


def run(folder: Path, like: Path) -> int:
    model = make(folder / "large", like)
    store = Store(folder / "store", floor_bytes=0)
    differ = 0
    with engines(folder) as started:

        def tell(name: str, stock: Answers, got: Answers, tiers: list[str]) -> None:
            nonlocal differ
            same = (got.tiers == tiers, got.tokens == stock.tokens, got.logprobs == stock.logprobs)
            differ += not all(same)
            say(f"{name:24} tier {same[0]}  tokens {same[1]}  log-probabilities {same[2]}")

        begun = time.monotonic()
        stock = started.answers(model, **_OPTIONS)
        say(f"stock vLLM answered after {time.monotonic() - begun:.0f} s")
        started.capture(model, store.root, "packed", "sharded", name="large", **_OPTIONS)
        capture_checkpoint(store, "large", model)
        sharded = store.find(Reference("large", flavour=Flavour.SHARDED)).folder
        tell("stock, sharded_state", stock, started.answers(sharded, "sharded_state", **_OPTIONS), [])
        for tier in ORDER:
            got = started.answers(model, "rewarm", {"store": str(store.root)}, **_OPTIONS)
            tell(tier, stock, got, [tier])
            store.evict(f"large@{tier}")
    say("all the same" if not differ else f"{differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
