"""Many calls of one kind: how many a second, and how long each took. The standard library only: the programs that run
in other environments use it too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks._stats import quantile


@dataclass(frozen=True)
class Timing:
    count: int
    per_s: float
    p50_ms: float
    p99_ms: float

    def json(self) -> dict[str, Any]:
        return {name: round(value, 3) for name, value in asdict(self).items()}


async def timed(count: int, at_once: int, call: Callable[[int], Awaitable[object]]) -> Timing:
    """``call(0)`` … ``call(count - 1)``, ``at_once`` of them at any time."""
    took: list[float] = []
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            started = time.perf_counter()
            await call(number)
            took.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    elapsed = time.perf_counter() - started
    return Timing(count, count / elapsed, quantile(took, 0.5) * 1000, quantile(took, 0.99) * 1000)
