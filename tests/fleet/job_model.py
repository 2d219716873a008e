"""What the queue should do with durable jobs: the oracle of :mod:`tests.fleet.job_machine`.

A job that waits or runs is held like a ticket (its gateway is "@job"); what else there is to know of it, also after its
end, is in ``jobs``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet import BANDS, JOB_LEASE_MS
from rewarm.jobs import TERMINAL, JobSpec, JobState
from rewarm.messages import Ticket
from tests.fleet.model import Held, Model

MAX_JOBS = 3
OUT_KEPT_MS = 1_800_000


@dataclass
class Known:
    """``history``: every accepted chunk (attempt, seq), in the order of acceptance."""

    spec: JobSpec
    created: float
    state: JobState = JobState.QUEUED
    attempt: int = 0
    spent: int = 0
    loads: int = 0
    owner: str | None = None
    cancel: bool = False
    seq: int = 0
    history: list[tuple[int, int]] = field(default_factory=list)
    result: bytes | None = None
    expires: float = 0
    out_until: float = float("inf")
    ended_by: tuple[str, str, int] | None = None  # what the repeat of a call is known by
    key: tuple[str, str] | None = None


@dataclass
class JobModel(Model):
    jobs: dict[str, Known] = field(default_factory=dict)
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)  # idempotency key → (job, hash)

    def waiting_jobs(self) -> list[str]:
        return [id_ for id_ in self.order() if self.held[id_].is_job]

    # --- clients -----------------------------------------------------------------------------------------------------

    def _refusal(self, spec: JobSpec, key: tuple[str, str] | None) -> str | None:
        """The job that is meant already, "conflict", "full", or None."""
        if spec.id in self.jobs:
            return spec.id
        if key is not None and key[0] in self.keys:
            id_, digest = self.keys[key[0]]
            return id_ if digest == key[1] else "conflict"
        theirs = [job for job in self.jobs.values() if job.spec.tenant == spec.tenant and job.state not in TERMINAL]
        return "full" if len(theirs) >= MAX_JOBS else None

    def submit(self, spec: JobSpec, key: tuple[str, str] | None) -> str:
        """The id of the job that it is now, "conflict" or "full"."""
        refused = self._refusal(spec, key)
        if refused is not None:
            return refused
        ticket = Ticket(
            id=spec.id,
            model="m",
            tenant=spec.tenant,
            gateway="@job",
            band=spec.band,
            weight=spec.weight,
            cost=spec.cost,
        )
        place, finish = self.next_place(ticket)
        self.bands[spec.band].finish[spec.tenant] = finish
        self.held[spec.id] = place
        self.jobs[spec.id] = Known(spec, self.now, key=key)
        if key is not None:
            self.keys[key[0]] = (spec.id, key[1])
        return spec.id

    def adopt(self, id_: str, spec: JobSpec) -> str | None:
        """As :meth:`submit`; None: the ticket does not wait."""
        refused = self._refusal(spec, None)
        if refused is not None:
            return refused
        held = self.held.get(id_)
        if held is None or held.grant is not None:
            return None
        del self.held[id_]
        ticket = Ticket(id=spec.id, model="m", tenant=spec.tenant, gateway="@job", band=spec.band)
        self.held[spec.id] = Held(ticket, held.score, held.start, held.epoch)
        self.jobs[spec.id] = Known(spec, self.now)
        return spec.id

    def cancel_job(self, id_: str, tenant: str) -> str:
        job = self.jobs.get(id_)
        if job is None or job.spec.tenant != tenant:
            return "unknown"
        if job.state in TERMINAL:
            return "ended"
        if job.state is JobState.QUEUED:
            self._conclude(id_, JobState.CANCELLED)
            return "cancelled"
        job.cancel = True
        return "cancelling"

    def delete(self, id_: str) -> str:
        job = self.jobs.get(id_)
        if job is None:
            return "unknown"
        if job.state not in TERMINAL:
            return "active"
        self._forget(id_)
        return "deleted"

    # --- workers -----------------------------------------------------------------------------------------------------

    def claim_with_jobs(self, grants: list[str], most: int, boot: str) -> list[tuple[str, str, int]]:
        """(ticket or job, grant, attempt; 0 for a ticket) in the order of service."""
        out: list[tuple[str, str, int]] = []
        taken = 0
        for id_ in self.order():
            held = self.held[id_]
            if len(out) == len(grants) or (held.ticket.band not in BANDS and taken >= most):
                break
            if not held.is_job:
                out += [(ticket, grant, 0) for ticket, grant in self._grant(id_, grants[len(out)])]
                continue
            job = self.jobs[id_]
            held.grant, held.deadline = grants[len(out)], self.now + JOB_LEASE_MS
            band = self.bands[held.ticket.band]
            band.virtual = max(band.virtual, held.start)
            job.state, job.owner, job.seq = JobState.IN_PROGRESS, boot, 0
            job.attempt, job.spent = job.attempt + 1, job.spent + 1
            taken += held.ticket.band not in BANDS
            out.append((id_, held.grant, job.attempt))
            self._settle()
        return out

    def holds(self, id_: str, owner: str, attempt: int) -> bool:
        job = self.jobs.get(id_)
        return job is not None and job.state is JobState.IN_PROGRESS and (job.owner, job.attempt) == (owner, attempt)

    def renew(self, id_: str, owner: str, attempt: int) -> str:
        if not self.holds(id_, owner, attempt):
            return "lost"
        self.held[id_].deadline = self.now + JOB_LEASE_MS
        return "cancel" if self.jobs[id_].cancel else "ok"

    def chunk(self, id_: str, owner: str, attempt: int, seq: int) -> bool:
        if not self.holds(id_, owner, attempt):
            return False
        job = self.jobs[id_]
        if seq > job.seq:
            job.seq = seq
            job.history.append((attempt, seq))
        return True

    def finish(self, id_: str, owner: str, attempt: int, state: JobState, result: bytes) -> bool:
        job = self.jobs.get(id_)
        if job is not None and job.ended_by == ("finish", owner, attempt):
            return True
        if job is None or not self.holds(id_, owner, attempt):
            return False
        job.ended_by = ("finish", owner, attempt)
        self._conclude(id_, state, result)
        return True

    def requeue(self, id_: str, owner: str, attempt: int, spent: bool) -> bool:
        job = self.jobs.get(id_)
        if job is None:
            return False
        if not self.holds(id_, owner, attempt):
            return job.ended_by == ("return", owner, attempt)  # a repeat, whatever became of the job since
        job.ended_by = ("return", owner, attempt)
        self._give_back(id_, spent)
        return True

    # --- the leader --------------------------------------------------------------------------------------------------

    def reap_jobs(self) -> tuple[int, int]:
        overdue = [id_ for id_, held in self.leased().items() if held.is_job and held.deadline <= self.now]
        for id_ in overdue:
            self.jobs[id_].ended_by = ("reap", "", 0)
            self._give_back(id_, True)
        returned = sum(self.jobs[id_].state is JobState.QUEUED for id_ in overdue)
        return returned, len(overdue) - returned

    def expire(self) -> None:
        for id_, job in list(self.jobs.items()):
            deadline = job.spec.start_deadline_ms
            if job.state is JobState.QUEUED and job.spent == 0 and deadline is not None and deadline <= self.now:
                self._conclude(id_, JobState.EXPIRED)
            elif job.state in TERMINAL and job.expires <= self.now:
                self._forget(id_)

    def load_failed(self) -> None:
        for id_ in self.waiting_jobs():
            job = self.jobs[id_]
            job.loads += 1
            if job.loads >= job.spec.max_loads:
                self._conclude(id_, JobState.FAILED)

    # -----------------------------------------------------------------------------------------------------------------

    def _grant(self, id_: str, grant: str) -> list[tuple[str, str]]:
        held = self.held[id_]
        granted = []
        if self.alive(held.ticket.gateway):
            held.grant, held.deadline = grant, self.now + 3000
            band = self.bands[held.ticket.band]
            band.virtual = max(band.virtual, held.start)
            granted.append((id_, grant))
        else:
            del self.held[id_]
        self._settle()
        return granted

    def _give_back(self, id_: str, spent: bool) -> None:
        job = self.jobs[id_]
        job.owner = None
        job.spent -= not spent
        if job.cancel:
            self._conclude(id_, JobState.CANCELLED)
        elif spent and job.spent >= job.spec.max_attempts:
            self._conclude(id_, JobState.FAILED)
        else:
            job.state = JobState.QUEUED
            self.return_to_place(self.held[id_])

    def _conclude(self, id_: str, state: JobState, result: bytes = b"") -> None:
        job = self.jobs[id_]
        job.state, job.owner, job.result = state, None, result or None
        job.expires = self.now + job.spec.retention_s * 1000
        job.out_until = self.now + min(OUT_KEPT_MS, job.spec.retention_s * 1000)
        self.remove(id_)

    def _forget(self, id_: str) -> None:
        job = self.jobs.pop(id_)
        if job.key is not None:
            self.keys.pop(job.key[0], None)
