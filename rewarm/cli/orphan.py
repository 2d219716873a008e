"""A child of the supervisor does not outlive it, not even when the supervisor is killed.

The end of the parent starts the normal shutdown. The private Redis is gone with the parent, so there is little to drain
for: after a few seconds the shutdown is hurried, then enforced.

Not the kernel's parent-death signal: it is sent once for every thread of the parent that ends, and a second one means
to hurry. And a thread of our own, so that even an event loop that hangs ends.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time

log = logging.getLogger("rewarm.cli.orphan")

HURRY_AFTER_S = 3.0
KILL_AFTER_S = 10.0


def tie_to_parent(parent: int) -> None:
    """From now on the end of process ``parent`` is ours. Exit at once if it is gone already."""
    try:
        handle: int | None = os.pidfd_open(parent)
    except ProcessLookupError:
        raise SystemExit(1) from None
    except OSError:  # before Linux 5.3
        handle = None
    if os.getppid() != parent:  # it ended before we looked, and its number may be another's by now
        raise SystemExit(1)
    threading.Thread(target=_watch, args=(parent, handle), name="orphan", daemon=True).start()


def _watch(parent: int, handle: int | None) -> None:
    if handle is not None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
    else:
        while os.getppid() == parent:
            time.sleep(0.5)
    log.warning("the supervisor is gone, shutting down parent=%d", parent)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(HURRY_AFTER_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(KILL_AFTER_S)
    log.error("the shutdown takes too long without a supervisor, killed")
    os.kill(os.getpid(), signal.SIGKILL)  # engines die with their agent
