"""A wake's receipt from what its worker reports: made alike by the worker that keeps it and the gateways that show it.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rewarm.messages import PhaseTiming, ReplicaReport, Wake
from rewarm.states import ReplicaState
from rewarm.units import format_bytes


def wake_of(worker: str, report: ReplicaReport) -> Wake | None:
    """None while the replica has never been ready."""
    if not report.ready_at_ms:
        return None
    return Wake(
        replica=report.replica,
        worker=worker,
        model=report.model,
        ready_at_ms=report.ready_at_ms,
        tier=report.tier,
        tier_reason=report.tier_reason,
        weights=report.weights,
        cause=report.cause,
        attempt=report.attempt,
        duration_s=round(sum(timing.duration_s for timing in report.timings), 4),
        bytes=sum(timing.bytes for timing in report.timings),
        gb_per_s=gb_per_s(report.timings),
        timings=report.timings,
        eta_error=report.eta_error,
        trace=report.trace,
    )


def gb_per_s(timings: Sequence[PhaseTiming]) -> float | None:
    """10⁹ bytes a second while weights were restored. For mapped weights that is what became usable a second, not what
    a disk gave."""
    for timing in timings:
        if timing.phase is ReplicaState.RESTORING and timing.bytes > 0 and timing.duration_s > 0:
            return round(timing.bytes / timing.duration_s / 1e9, 3)
    return None


def words(wake: Wake) -> str:
    """``cold, packed smollm2@…, 256 MiB at 1.76 GB/s``: for a person, in one line."""
    parts = [wake.tier.value]
    if wake.tier_reason:
        parts[0] += f" ({wake.tier_reason})"
    if wake.weights:
        parts.append(wake.weights)
    if wake.bytes:
        rate = "" if wake.gb_per_s is None else f" at {wake.gb_per_s:.2f} GB/s"
        parts.append(f"{format_bytes(wake.bytes)}{rate}")
    return ", ".join(parts)
