"""What a run asks of Redis: the worker's part of :class:`fleet.Jobs`, for whom a test may put something in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fleet import JobLimits, Renewal
from rewarm.fallback import Chain
from rewarm.jobs import JobLease, JobOutcome


class JobStore(Protocol):
    """All of it raises QueueUnavailable while Redis is out of reach, and may be repeated then."""

    limits: JobLimits

    async def body(self, id_: str) -> bytes | None: ...

    async def renew(self, worker: str, leases: Sequence[tuple[str, int]]) -> dict[str, Renewal]: ...

    async def chunk(self, id_: str, worker: str, attempt: int, seq: int, data: bytes, *, tokens: int) -> bool: ...

    async def finish(self, id_: str, worker: str, attempt: int, outcome: JobOutcome, result: bytes) -> bool: ...

    async def models(self, names: Sequence[str]) -> frozenset[str]: ...

    async def pass_on(self, lease: JobLease, worker: str, chain: Chain, reason: str) -> bool: ...

    async def requeue(self, id_: str, worker: str, attempt: int, *, spent: bool, reason: str) -> bool: ...
