"""How the C library shares out the heap of this process to its threads."""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h


def share_one_heap() -> None:
    """All threads from now on, of this process and not of what it starts. Elsewhere than in glibc nothing happens.

    glibc gives each thread a heap of its own, which grows to what the thread's largest work took and stays so: every
    helper thread that a busy moment adds costs an agent two megabytes for ever. Its threads read small files; they have
    no use for it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
