"""A model that was mapped ahead, in a fork of the process that did it.

That process loads with ``verify`` "later": the model is whole, nothing of its weights was read, and no thread runs.
What is left for the fork to do is what a load would have done with the bytes themselves.
"""

from __future__ import annotations

from typing import Any

from rewarm_vllm.flavours import report, say_mapped
from rewarm_vllm.kept import kept_by
from rewarm_vllm.observing import observer
from snapshots import RestoreOptions, throttle_from_env


def let_go(model: Any) -> None:
    """What ``model`` is mapped from may be evicted, as long as only forks of this process read it."""
    kept = kept_by(model)
    if kept is not None:
        kept.lease.let_go()


def resume(model: Any, *, compared: bool) -> bool:
    """``compared``: the digests of these very bytes were compared by an engine before, and the files have not changed
    since. Bytes that the disk has to deliver first are compared in any case: that costs nothing then. False where
    they were wrong, and the model has got others: the observer has heard which. Raise SnapshotNotFound where there is
    nothing to read any more."""
    kept = kept_by(model)
    if kept is None or kept.verification is None:
        return True
    kept.lease.retake()
    if not kept.mapped.mostly_cached:
        observer().reading("reading weights")
        kept.verification.begin(RestoreOptions(report=report, throttle=throttle_from_env()))
        kept.verification.settle()
        return kept_by(model) is kept
    say_mapped(kept.lease)
    if compared:
        kept.verification.waive()
    else:
        kept.verification.begin()
    return True
