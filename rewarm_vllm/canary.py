"""The recorded greedy answer: whether an engine that restored a snapshot says what the engine it came from said."""

from __future__ import annotations

from collections.abc import Sequence

from snapshots import Canary, SnapshotError

PROMPT = "The capital of France is the city of"
TOKENS = 16


class CanaryFailed(SnapshotError):
    """The weights are whole by every digest, and the model answers otherwise than it did."""

    code = "canary_failed"
    advice = "Load from the checkpoint. The snapshot is in quarantine, with the reason, for somebody to look at."


def check_canary(recorded: Canary, tokens: Sequence[int]) -> None:
    if tuple(tokens) == recorded.tokens:
        return
    at = next((n for n, (a, b) in enumerate(zip(tokens, recorded.tokens, strict=False)) if a != b), len(tokens))
    raise CanaryFailed(
        f"token {at} of the recorded answer to {recorded.prompt[:60]!r} is another one: "
        f"{list(tokens)[at : at + 4]} instead of {list(recorded.tokens)[at : at + 4]}"
    )
