"""Wakes as this gateway tells of them: their receipts for operators, how long they took and how right the ETA was."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any, Protocol

from gateway.http import Request
from gateway.keys import Keyring
from gateway.metrics import Metrics
from gateway.operators import Operators
from gateway.view import View
from rewarm.errors import InvalidRequest, QueueUnavailable
from rewarm.jobs import Job
from rewarm.messages import Wake, WakeRecord, to_json
from rewarm.wakes import wake_of

ERRORS_KEPT = 50
MOST_SHOWN = 200
_REMEMBERED = 2000
_CLOCKS_MS = 1000
"""A worker's idea of Redis time may be so much off: what is ready before a job starts may look a little later."""


class WakeStore(Protocol):
    async def last(self, limit: int) -> list[WakeRecord]: ...
    async def of(self, replica: str) -> list[WakeRecord]: ...


class WakeMetrics:
    """Counts each wake once, when its replica is first seen ready; not those that are older than this gateway."""

    def __init__(self, view: View, metrics: Metrics) -> None:
        self._view = view
        self._metrics = metrics
        self._seen: dict[str, int] | None = None  # replica → when it was ready, ms
        self._errors: dict[tuple[str, ...], deque[float]] = {}
        metrics.gauge(
            "rewarm_eta_error",
            "Median error of the ETA told half-way through the last wakes, as a share of what was left",
            ("model", "tier"),
            self.errors,
        )

    def look(self) -> None:
        """Called for each reading of the fleet."""
        seen: dict[str, int] = {}
        for beat in self._view.fleet.workers.values():
            for report in beat.replicas:
                if not report.ready_at_ms:
                    continue
                seen[report.replica] = report.ready_at_ms
                wake = wake_of(beat.worker, report)
                if self._seen is not None and wake and self._seen.get(report.replica) != report.ready_at_ms:
                    self._count(wake)
        self._seen = seen

    def errors(self) -> dict[tuple[str, ...], float]:
        return {labels: statistics.median(seen) for labels, seen in self._errors.items()}

    def _count(self, wake: Wake) -> None:
        self._metrics.wakes.observe(wake.duration_s, wake.model, wake.tier.value)
        if wake.eta_error is not None:
            labels = (wake.model, wake.tier.value)
            self._errors.setdefault(labels, deque(maxlen=ERRORS_KEPT)).append(abs(wake.eta_error))


class WakesOfJobs:
    """Which wake a job waited for: from the fleet's view while the replica is there, else from Redis."""

    def __init__(self, view: View, store: WakeStore) -> None:
        self._view = view
        self._store = store
        self._known: dict[str, Wake | None] = {}

    async def of(self, job: Job) -> Wake | None:
        """None for a job that found its model ready, or has not started. Nothing is raised while Redis is away."""
        if job.replica is None or job.started_ms is None:
            return None
        worker, report = self._view.located(job.replica)
        wake = None if report is None else wake_of(worker, report)
        if wake is not None and _awaited(job, wake):
            return wake
        key = f"{job.spec.id} {job.attempt}"
        if key not in self._known:
            try:
                found = [record.wake for record in await self._store.of(job.replica) if _awaited(job, record.wake)]
            except QueueUnavailable:
                return None
            self._known[key] = found[0] if found else None
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return self._known[key]


def _awaited(job: Job, wake: Wake) -> bool:
    return job.started_ms is not None and job.created_ms < wake.ready_at_ms <= job.started_ms + _CLOCKS_MS


class WakePages:
    """``GET /rewarm/v1/wakes?last=n``: for whoever may see the status. Who waited is told to operators, and to each key
    of its own requests."""

    def __init__(self, view: View, keys: Keyring, operators: Operators, store: WakeStore) -> None:
        self._view = view
        self._keys = keys
        self._operators = operators
        self._store = store

    async def list(self, request: Request) -> dict[str, Any]:
        """Raise InvalidApiKey, InvalidRequest, QueueUnavailable."""
        self._operators.may_look(request)
        tenant: str | None = None  # all of them
        if not self._operators.has_token(request):
            caller = self._keys.identify(request.headers)
            tenant = None if caller.operator or self._keys.open else caller.tenant
        records = await self._store.last(_limit(request))
        data = [_shown(record, tenant) for record in records]
        return {"object": "list", "now_ms": self._view.now_ms(), "data": data}


def _limit(request: Request) -> int:
    text = request.query.get("last", "20")
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_SHOWN):
        raise InvalidRequest(f"`last` is a number from 1 to {MOST_SHOWN}, not {text!r}", param="last")
    return int(text)


def _shown(record: WakeRecord, tenant: str | None) -> dict[str, Any]:
    waiters = [to_json(one) for one in record.waiters if tenant is None or one.tenant == tenant]
    return {**to_json(record.wake), "waited": record.waited, "waiters": waiters}
