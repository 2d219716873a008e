"""Where an attempt at a job goes in: the gate of a replica, or an upstream elsewhere; what a refusal there means."""

from __future__ import annotations

from typing import Protocol

from rewarm.jobs import JobLease
from rewarm.upstream import UpstreamPool, UpstreamResponse, UpstreamUnreachable
from worker.gate.gate import BUSY_HEADER, UNSEEN_HEADER
from worker.jobs.ask import Ask
from worker.jobs.verdict import End, Refused


class Door(Protocol):
    async def open(self, lease: JobLease, grant: str, ask: Ask) -> UpstreamResponse:
        """Send the request. Raise UpstreamUnreachable."""

    def unreachable(self, error: UpstreamUnreachable) -> End: ...

    def refused(self, answer: UpstreamResponse) -> End | None:
        """From the answer's head: why nothing of it is the job's; None where it is."""

    def named(self, data: bytes) -> bytes:
        """A chunk or a whole answer, with our name for the model."""


class GateDoor:
    """A replica's gate: ``endpoint`` is its unix socket."""

    def __init__(self, pool: UpstreamPool, endpoint: str) -> None:
        self._pool = pool
        self._endpoint = endpoint

    async def open(self, lease: JobLease, grant: str, ask: Ask) -> UpstreamResponse:
        headers = [
            (b"Content-Type", b"application/json"),
            (b"X-Rewarm-Grant", grant.encode()),
            (b"X-Request-Id", f"{lease.spec.id}-{lease.attempt}".encode()),
        ]
        return await self._pool.open(self._endpoint, "POST", lease.spec.path, headers, ask.body)

    def unreachable(self, error: UpstreamUnreachable) -> End:
        return Refused(str(error))

    def refused(self, answer: UpstreamResponse) -> End | None:
        if answer.status == 503 and (why := header_of(answer, BUSY_HEADER)):
            return Refused(why)
        if answer.status >= 500 and header_of(answer, UNSEEN_HEADER):
            return Refused("its engine has ended")
        return None

    def named(self, data: bytes) -> bytes:
        return data


def header_of(answer: UpstreamResponse, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in answer.headers if name.lower() == wanted), "")
