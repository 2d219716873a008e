"""What a worker does with the jobs that are leased to it. Every call names the attempt, which fences it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fleet.client import FleetClient
from fleet.jobs.limits import JOB_LEASE_MS, JobLimits, Renewal
from fleet.jobs.moving import InChain, chain_of, models, move
from fleet.jobs.places import JobPlace, job_places
from fleet.scripts import ArgList
from rewarm.errors import JobAttemptsExhausted, JobCancelled, JobResultTooLarge
from rewarm.fallback import Chain
from rewarm.jobs import JobLease, JobOutcome

_REMEMBERED_PLACES = 10_000
_MESSAGE = 2000  # characters of a reason: engines can be wordy


class LeasedJobs:
    """``worker`` is the boot id of the worker that claimed (``boot`` of :meth:`fleet.Queue.claim`)."""

    def __init__(self, client: FleetClient, limits: JobLimits) -> None:
        self.limits = limits
        self._client = client
        self._keys = client.keys
        self._scripts = client.scripts
        # By job and attempt: between two attempts it may be moved. The oldest are forgotten.
        self._places: dict[tuple[str, int], JobPlace] = {}

    async def renew(self, worker: str, leases: Sequence[tuple[str, int]]) -> dict[str, Renewal]:
        """For each (id, attempt): the lease runs on ("cancel": and the client wants it cancelled), or is lost."""
        if not leases:
            return {}
        keys = [self._keys.lease, self._keys.pulse, *(self._keys.ticket(id_) for id_, _ in leases)]
        arguments: ArgList = [worker, JOB_LEASE_MS]
        for id_, attempt in leases:
            arguments += [id_, attempt]
        answers = await self._scripts.run("job_renew", keys, arguments)
        return {id_: answer.decode() for (id_, _), answer in zip(leases, answers, strict=True)}

    async def chunk(self, id_: str, worker: str, attempt: int, seq: int, data: bytes, *, tokens: int) -> bool:
        """Output, in order of ``seq`` from 1. ``tokens``: of this attempt so far. False: fenced out, stop.

        Raise :class:`JobResultTooLarge` where the attempt's chunks would pass ``limits.max_result``.
        """
        keys = [self._keys.ticket(id_), self._keys.lease, self._keys.out(id_), self._keys.store]
        arguments: ArgList = [worker, attempt, seq, data, tokens, self.limits.max_result]
        outcome = await self._scripts.run("job_chunk", keys, arguments)
        if outcome < 0:
            raise JobResultTooLarge(f"the output is over {self.limits.max_result} bytes")
        return bool(outcome)

    async def finish(self, id_: str, worker: str, attempt: int, outcome: JobOutcome, result: bytes) -> bool:
        """The one terminal write. False: fenced out. Raise :class:`JobResultTooLarge`."""
        if len(result) > self.limits.max_result:
            raise JobResultTooLarge(f"the result has {len(result)} bytes, of at most {self.limits.max_result}")
        place = await self._place(id_, attempt)
        if place is None:
            return False
        arguments: ArgList = [id_, worker, attempt, outcome.state, outcome.http_status]
        arguments += [outcome.error_code or "", (outcome.error_message or "")[:_MESSAGE]]
        arguments += [_usage(outcome), outcome.tokens, result]
        return bool(await self._scripts.run("job_finish", place.keys(self._keys), arguments))

    async def requeue(self, id_: str, worker: str, attempt: int, *, spent: bool, reason: str) -> bool:
        """Back to its original place. With ``spent`` the attempt counts, and the last one fails the job with
        ``reason``; a job whose cancelling was asked for is cancelled. False: fenced out.
        """
        place = await self._place(id_, attempt)
        if place is None:
            return False
        arguments: ArgList = [id_, worker, attempt, int(spent), reason[:_MESSAGE]]
        arguments += [JobAttemptsExhausted.code, JobCancelled.code]
        return bool(await self._scripts.run("job_return", place.keys(self._keys), arguments) != b"no")

    async def models(self, names: Sequence[str]) -> frozenset[str]:
        """Those of ``names`` that are models now: a chain was written down when its job was submitted."""
        return await models(self._client, names)

    async def pass_on(self, lease: JobLease, worker: str, chain: Chain, reason: str) -> bool:
        """On to the next model of its chain, instead of a last attempt that failed. False: fenced out."""
        place = await self._place(lease.spec.id, lease.attempt)
        if place is None:
            return False
        at = chain_of(lease.spec, lease.chain, lease.created_ms)
        held = (worker, lease.attempt)
        return await move(self._client, InChain(place, lease.spec, at), chain, reason[:_MESSAGE], lease=held)

    # -----------------------------------------------------------------------------------------------------------------

    async def _place(self, id_: str, attempt: int) -> JobPlace | None:
        place = self._places.get((id_, attempt))
        if place is None:
            place = (await job_places(self._client, [id_])).get(id_)
            if place is not None:
                if len(self._places) >= _REMEMBERED_PLACES:
                    self._places.pop(next(iter(self._places)))
                self._places[id_, attempt] = place
        return place


def _usage(outcome: JobOutcome) -> bytes:
    return b"" if outcome.usage is None else msgspec.msgpack.encode(outcome.usage)
