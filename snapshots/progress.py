"""How far a capture, restore, download or verification is, counted in bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """``done_bytes`` never goes back within one piece of work. ``file`` is the one that the last bytes belong to."""

    phase: str  # "reading", "writing", "downloading", "verifying", "syncing"
    done_bytes: int
    total_bytes: int
    file: str = ""

    @property
    def fraction(self) -> float:
        return self.done_bytes / self.total_bytes if self.total_bytes else 1.0


OnProgress = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """Nobody wants to know."""


class Meter:
    """Adds up what several threads have done and reports it, one call at a time."""

    def __init__(self, phase: str, total_bytes: int, report: OnProgress) -> None:
        self._phase, self._total, self._report = phase, total_bytes, report
        self._done = 0
        self._lock = threading.Lock()

    @property
    def done_bytes(self) -> int:
        return self._done

    def add(self, amount: int, file: str = "") -> None:
        with self._lock:
            self._done += amount
            self._report(Progress(self._phase, self._done, self._total, file))
