"""The greedy answer that snapshots are held to, asked of the engine that serves; the same for every kind of engine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from rewarm.states import FailureReason
from rewarm_vllm import PROMPT, TOKENS, CanaryFailed, Loaded, check_canary
from snapshots import CANARY, Canary, CheckpointError, Manifest, SnapshotError, Store
from worker.engines.host import HostFailed
from worker.engines.proof import Kind, Post

_log = logging.getLogger("rewarm.worker.canary")


async def ask(post: Post, model: str, prompt: str = PROMPT, tokens: int = TOKENS) -> Canary | None:
    """None when the engine does not complete text. Token ids, because different tokens may spell the same text."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    status, answer = await post(Kind.COMPLETION.value, body | {"ignore_eos": True, "return_token_ids": True})
    if status != 200:
        _log.warning("event=no-canary status=%d", status)
        return None
    choice = json.loads(answer)["choices"][0]
    return Canary(prompt, tuple(choice["token_ids"]), choice["text"])


async def check(
    post: Post, model: str, loaded: Loaded, counts: Callable[[Manifest], bool], most: int | None = None
) -> bool:
    """Whether the engine answers as the one did that its snapshot is of; at ``most`` so many tokens of that are asked.
    ``counts`` says whether this engine may be held to the record. False where there is no such answer to compare.
    Raise HostFailed, with the snapshot in quarantine: the next attempt loads something else."""
    if loaded.snapshot_id is None or not loaded.store:
        return False
    store = Store(Path(loaded.store))
    try:
        manifest = store.find(loaded.snapshot_id).manifest
    except (SnapshotError, CheckpointError):
        return False  # evicted meanwhile: the engine holds its lease, the record is out of reach
    if manifest is None or manifest.canary is None or not counts(manifest):
        return False
    recorded = msgspec.structs.replace(manifest.canary, tokens=manifest.canary.tokens[:most])
    answer = await ask(post, model, recorded.prompt, len(recorded.tokens))
    if answer is None:
        return False
    try:
        check_canary(recorded, answer.tokens)
    except CanaryFailed as error:
        try:
            store.quarantine(loaded.snapshot_id, CANARY, str(error))
        except (SnapshotError, OSError) as refused:
            _log.error("event=not-quarantined snapshot=%s error=%s", loaded.snapshot_id, refused)
        words = f"{loaded.snapshot_id} was put into quarantine: {error}"
        raise HostFailed(FailureReason.VERIFICATION_FAILED, words) from error
    return True
