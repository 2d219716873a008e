"""What the durable half of the queue takes and answers with, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

JOB_LEASE_MS = 15_000
"""A worker renews what it runs every four seconds; a lease that it did not renew for this long it has lost."""

OUT_KEPT_MS = 30 * 60 * 1000
"""How long the output's chunks outlive the end. The result stays as long as the job."""

OVERHEAD_BYTES = 1024
"""Counted for each job beside its body, so that a million empty jobs are bounded as well."""

MAX_BLOCK_MS = 2000

Deleted = Literal["deleted", "active", "unknown"]
FailJobs = Literal["keep", "count", "fail"]
Renewal = Literal["ok", "lost", "cancel"]
Cancelled = Literal["cancelled", "cancelling", "ended", "unknown"]


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Bytes are what is kept for a tenant, or for all: bodies of jobs that have not ended, output, results."""

    max_body: int = 1 << 20
    max_bytes_tenant: int = 256 << 20
    max_bytes_total: int = 1 << 30
    max_jobs_tenant: int = 1_000_000  # that have not ended
    max_result: int = 8 << 20  # also of the chunks of one attempt


@dataclass(frozen=True, slots=True)
class Submitted:
    id: str
    created: bool  # False: the same key and body, or the same id, was submitted before
    position: int | None  # 0-based over all bands; None once it no longer waits


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output. With ``end`` the job has ended, ``data`` is empty and nothing follows."""

    id: str  # "<attempt>-<seq>"
    attempt: int
    seq: int  # from 1 within an attempt
    data: bytes
    end: bool = False
