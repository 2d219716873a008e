"""Failures that say nothing of a model: this process, or its machine, has run out of something for a moment."""

from __future__ import annotations

import errno

from rewarm.states import FailureReason
from worker.lifecycle import Faulted

_PASSING = frozenset((errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM))


def exhausted(error: BaseException | None) -> bool:
    """Whether no descriptor, process or memory was to be had, or that is what it was raised for."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _PASSING:
            return True
        error = error.__cause__ or error.__context__
    return False


def fault_of(error: BaseException, reason: FailureReason, message: str) -> Faulted:
    """``reason``, unless it is the worker's own trouble, after which the load is tried again."""
    if exhausted(error):
        return Faulted(FailureReason.AGENT_LOST, f"the worker has run out of something: {message}")
    return Faulted(reason, message)
