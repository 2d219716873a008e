"""The token bucket at work: threads wait at it, and wake at once when the limit changes or the work is cancelled."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from snapshots.errors import Cancelled
from snapshots.token_bucket import TokenBucket

_BURST_S = 0.1


class Throttle:
    """Shared by all threads of one restore, capture or download, or by several of these."""

    _look_every_s = 0.5

    def __init__(self, bytes_per_s: float | None = None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._changed = threading.Condition()
        self._monotonic = monotonic
        self._bucket = TokenBucket(None, 0.0)
        self._generation = 0
        self.limit(bytes_per_s)

    def limit(self, bytes_per_s: float | None) -> None:
        """Change the limit; None lifts it. Whoever waits is told."""
        with self._changed:
            self._bucket.burst = (bytes_per_s or 0.0) * _BURST_S
            self._bucket.set_rate(bytes_per_s, self._monotonic())
            self._generation += 1
            self._changed.notify_all()

    @property
    def bytes_per_s(self) -> float | None:
        return self._bucket.rate

    def _look(self) -> None:
        """Before every wait: whether the limit is another one now. It is what :meth:`limit` said last."""

    def wake(self) -> None:
        """Let whoever waits look at its cancellation again."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, amount: int, cancel: threading.Event | None = None) -> None:
        """Block until ``amount`` bytes may be moved. Raise Cancelled when ``cancel`` is set (at once after
        :meth:`wake`)."""
        with self._changed:
            self._look()
            if self._bucket.rate is None:
                return
            wait_s = self._bucket.take(amount, self._monotonic())
            while wait_s > 0:
                if cancel is not None and cancel.is_set():
                    raise Cancelled("cancelled while waiting for bandwidth")
                self._changed.wait(min(wait_s, self._look_every_s))
                self._look()
                wait_s = self._bucket.advance(self._monotonic())

    async def wait_async(self, amount: int) -> None:
        with self._changed:
            if self._bucket.rate is None:
                return
            wait_s = self._bucket.take(amount, self._monotonic())
        while wait_s > 0:
            await asyncio.sleep(min(wait_s, 0.2))  # a changed limit is noticed at the latest then
            with self._changed:
                wait_s = self._bucket.advance(self._monotonic())
