"""The C library's heap of this process: how its threads share it, and what goes back to the machine.

Nothing happens where the C library is not glibc.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h
_libc = ctypes.CDLL(None)


def share_one_heap() -> None:
    """All threads from now on, of this process and not of what it starts.

    glibc gives each thread a heap of its own, which grows to what the thread's largest work took and stays so: every
    helper thread that a busy moment adds costs an agent two megabytes for ever. Its threads read small files; they have
    no use for it.
    """
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def give_back_unused() -> None:
    """Whole pages that hold nothing; some milliseconds.

    By itself glibc gives back only the heap's end. What reading a checkpoint's header or a log took for a moment lies
    below something small that stays, and the next such moment may find that hole a little too small: the heap grows by
    two megabytes, now and then, without anything being kept.
    """
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)
