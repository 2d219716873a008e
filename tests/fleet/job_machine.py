"""The state machine of :mod:`tests.fleet.machine` with durable jobs among the tickets.

Two workers, jobs of two tenants in three bands, tickets that are handed off, attempts that run out, start deadlines and
a retention short enough that all of it meets on the same few ids. Beside the places, histories are checked: a job has
one terminal state, and no chunk of an attempt comes after the first of the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fleet import JOB_BANDS, JobLimits, Jobs, Leader
from rewarm.errors import IdempotencyConflict, JobQuotaExceeded
from rewarm.jobs import TERMINAL, JobOutcome, JobSpec, JobState
from rewarm.messages import Failure
from rewarm.states import FailureReason, ReplicaState
from tests.fleet.job_model import MAX_JOBS, JobModel, Known
from tests.fleet.machine import STEP_MS, machine

RETENTION_S = 20
START_WITHIN_MS = 7000
BOOTS = ("boot-1", "boot-2")
JOBS = tuple(f"job_{n}" for n in range(5))
JOB_IDS = st.sampled_from(JOBS)
HANDED = {f"t{n}": f"job_t{n}" for n in range(8)}
KEYS = {"job_0": ("k", "same"), "job_2": ("k", "same"), "job_4": ("k", "other")}  # all of tenant A

_claims = itertools.count()
_failures = itertools.count()


def job_machine(url: str, source: Mapping[str, str]) -> type[RuleBasedStateMachine]:
    base: Any = machine(url, source)

    class JobMachine(base):  # type: ignore[misc]  # the class is made for each server
        new_model = JobModel
        model: JobModel
        # The other machine's part, and so many rules that little would happen to any job.
        cancel = abandon = decline = gateway_leave = claim_again_because_the_reply_was_lost = None

        def __init__(self) -> None:
            super().__init__()
            self.jobs = Jobs(self.client, JobLimits(max_jobs_tenant=MAX_JOBS))
            self.leases: list[tuple[str, str, int]] = []  # every (job, boot, attempt) there ever was
            self.terminal: dict[str, JobState] = {}
            self.leader = Leader(self.client, "controller")

        def spec(self, id_: str, **fields: Any) -> JobSpec:
            number = int(id_[-1])
            given = {
                "id": id_,
                "tenant": "AB"[number % 2],
                "model": "m",
                "asked_model": "m",
                "path": "/v1/completions",
                "band": JOB_BANDS[("normal", "normal", "high")[number % 3]],
                "weight": 1.0 + number % 2,
                "max_attempts": 2,
                "max_loads": 2,
                "retention_s": RETENTION_S,
                "start_deadline_ms": int(self.model.now) + START_WITHIN_MS if number == 1 else None,
                **fields,
            }
            return JobSpec(**given)

        def some_lease(self, data: st.DataObject) -> tuple[str, str, int]:
            """Mostly one that is held, by mostly its owner, or the attempt before it; else any of the last."""
            held = [lease for lease in self.leases if self.model.holds(*lease)]
            id_, boot, attempt = data.draw(st.sampled_from([*held * 3, *self.leases[-3:]]))
            boot = data.draw(st.sampled_from([boot, boot, boot, *BOOTS]))
            return id_, boot, data.draw(st.sampled_from([attempt, attempt, attempt, max(1, attempt - 1)]))

        def some_job(self, data: st.DataObject) -> str:
            return str(data.draw(st.sampled_from([*sorted(self.model.jobs), *sorted(self.model.jobs), *JOBS])))

        # --- clients -------------------------------------------------------------------------------------------------

        @rule(id_=JOB_IDS)
        def submit(self, id_: str) -> None:
            known = self.model.jobs.get(id_)
            spec, key = known.spec if known else self.spec(id_), KEYS.get(id_)
            expected = self.model.submit(spec, key)
            try:
                got = self.run(self.jobs.submit(spec, b"body of " + id_.encode(), idempotency=key))
            except IdempotencyConflict:
                assert expected == "conflict"
            except JobQuotaExceeded:
                assert expected == "full"
            else:
                order = self.model.order()
                assert got.id == expected
                assert got.position == (order.index(got.id) if got.id in order else None)

        @precondition(lambda self: any(not held.is_job for held in self.model.held.values()))
        @rule(data=st.data())
        def hand_off(self, data: st.DataObject) -> None:
            waiting = [id_ for id_, held in self.model.held.items() if not held.is_job]
            id_ = data.draw(st.sampled_from([*sorted(waiting) * 3, "t0"]))
            ticket = self.ticket(id_)
            fields = {"tenant": ticket.tenant, "band": ticket.band, "start_deadline_ms": None}
            spec = self.spec(HANDED[id_], **fields)
            expected = self.model.adopt(id_, spec)
            try:
                got = self.run(self.jobs.adopt(id_, ticket.gateway, spec, b"handed off"))
            except JobQuotaExceeded:
                assert expected == "full"
            else:
                assert (got.id if got else None) == expected

        @precondition(lambda self: self.model.jobs)
        @rule(data=st.data(), wrong=st.sampled_from([False, False, False, True]))
        def cancel_job(self, data: st.DataObject, wrong: bool) -> None:
            id_ = self.some_job(data)
            tenant = "Z" if wrong or id_ not in self.model.jobs else self.model.jobs[id_].spec.tenant
            assert self.run(self.jobs.cancel(id_, tenant)) == self.model.cancel_job(id_, tenant)

        @precondition(lambda self: any(job.state in TERMINAL for job in self.model.jobs.values()))
        @rule(data=st.data())
        def delete(self, data: st.DataObject) -> None:
            id_ = self.some_job(data)
            job = self.model.jobs.get(id_)
            tenant = job.spec.tenant if job else "A"
            assert self.run(self.jobs.delete(id_, tenant)) == self.model.delete(id_)

        # --- workers -------------------------------------------------------------------------------------------------

        @precondition(lambda self: self.model.order())
        @rule(count=st.integers(1, 3), most=st.sampled_from([0, 1, 2, 2]), boot=st.sampled_from(BOOTS))
        def claim(self, count: int, most: int, boot: str) -> None:
            request = f"job-claim-{next(_claims)}"
            offers = [f"{request}-{i}" for i in range(count)]
            how = {"request_id": request, "max_jobs": most, "boot": boot}
            got = self.run(self.queue.claim("m", "w", "r", "unix:/s", offers, **how))
            expected = self.model.claim_with_jobs(offers, most, boot)
            leased = [(lease.spec.id, lease.grant, lease.attempt) for lease in got.jobs]
            granted = [(grant.ticket, grant.grant, 0) for grant in got.grants]
            assert sorted(leased + granted) == sorted(expected)
            self.leases += [(id_, boot, attempt) for id_, _, attempt in leased]
            self.grants += [(id_, grant) for id_, grant, _ in granted]
            again = self.run(self.queue.claim("m", "w", "r", "unix:/s", offers, **how))
            assert again == got

        @precondition(lambda self: self.leases)
        @rule(data=st.data(), seq=st.integers(1, 3))
        def chunk(self, data: st.DataObject, seq: int) -> None:
            id_, boot, attempt = self.some_lease(data)
            text = f"{attempt}-{seq}".encode()
            got = self.run(self.jobs.chunk(id_, boot, attempt, seq, text, tokens=seq))
            assert got == self.model.chunk(id_, boot, attempt, seq)

        @precondition(lambda self: self.leases)
        @rule(data=st.data(), state=st.sampled_from([JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED]))
        def finish(self, data: st.DataObject, state: JobState) -> None:
            id_, boot, attempt = self.some_lease(data)
            result = f"{boot} {attempt} {state}".encode()
            got = self.run(self.jobs.finish(id_, boot, attempt, JobOutcome(state=state, http_status=200), result))
            assert got == self.model.finish(id_, boot, attempt, state, result)

        @precondition(lambda self: self.leases)
        @rule(data=st.data(), spent=st.booleans())
        def requeue(self, data: st.DataObject, spent: bool) -> None:
            id_, boot, attempt = self.some_lease(data)
            got = self.run(self.jobs.requeue(id_, boot, attempt, spent=spent, reason="told to"))
            assert got == self.model.requeue(id_, boot, attempt, spent)

        @precondition(lambda self: self.leases)
        @rule(data=st.data())
        def renew(self, data: st.DataObject) -> None:
            id_, boot, attempt = self.some_lease(data)
            assert self.run(self.jobs.renew(boot, [(id_, attempt)])) == {id_: self.model.renew(id_, boot, attempt)}

        # --- the leader ----------------------------------------------------------------------------------------------

        @precondition(lambda self: self.model.leased())
        @rule()
        def reap(self) -> None:
            reaped = self.run(self.queue.reap())
            jobs = self.model.reap_jobs()
            assert (reaped.jobs_returned, reaped.jobs_ended) == jobs
            assert (reaped.returned, reaped.dropped) == self.model.reap()

        @rule(steps=st.integers(1, 8))
        def time_passes(self, steps: int) -> None:
            self.model.now += steps * STEP_MS
            self.quiet = True

        @precondition(lambda self: self.model.jobs)
        @rule()
        def expire(self) -> None:
            self.run(self.jobs.expire())
            self.model.expire()

        @precondition(lambda self: len(self.model.waiting_jobs()) > 1)
        @rule()
        def a_load_fails(self) -> None:
            term = self.run(self.leader.campaign())
            why = Failure(reason=FailureReason.STALLED, message="", phase=ReplicaState.RESTORING, at_ms=next(_failures))
            for id_ in [id_ for id_ in self.model.order() if not self.model.held[id_].is_job]:
                self.model.remove(id_)
            self.model.load_failed()
            self.run(self.queue.fail_all("m", "model_load_failed", "", why, "controller", term, jobs="count"))

        # --- what always holds ---------------------------------------------------------------------------------------

        @invariant()
        def every_job_stands_where_the_model_says(self) -> None:
            ids = sorted({*JOBS, *HANDED.values()})
            for id_, job in zip(ids, self.run(self.jobs.get_many(ids)), strict=True):
                known = self.model.jobs.get(id_)
                assert (job is None) == (known is None), id_
                if job is None or known is None:
                    self.terminal.pop(id_, None)
                    continue
                got = (job.state, job.attempt, job.spent, job.loads, job.chunks)
                assert got == (known.state, known.attempt, known.spent, known.loads, len(known.history))
                order = self.model.order()
                assert job.position == (order.index(id_) if id_ in order else None)
                assert self.run(self.jobs.result(id_)) == known.result
                # One terminal state, until it is forgotten.
                if job.state in TERMINAL:
                    assert self.terminal.setdefault(id_, job.state) == job.state
                else:
                    assert id_ not in self.terminal
                self._check_history(id_, known)

        def _check_history(self, id_: str, known: Known) -> None:
            read = self.run(self.jobs.events(id_))
            chunks = [(chunk.attempt, chunk.seq) for chunk in read if not chunk.end]
            assert chunks == known.history
            assert chunks == sorted(chunks)  # attempts never interleave
            assert [chunk.data for chunk in read if not chunk.end] == [f"{a}-{s}".encode() for a, s in chunks]
            assert [chunk.end for chunk in read][-1:] == ([True] if known.state in TERMINAL else [False] * bool(read))

    return JobMachine
