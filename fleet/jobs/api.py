"""What gateways and the leader do with durable jobs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from fleet._errors import RedisFull, translated
from fleet._wire import execute, repeated
from fleet.client import FleetClient
from fleet.jobs import ends, moving
from fleet.jobs.leased import LeasedJobs
from fleet.jobs.limits import MAX_BLOCK_MS, Cancelled, Chunk, Deleted, JobLimits, Submitted
from fleet.jobs.moving import InChain
from fleet.jobs.places import JobPlace, job_places, ready_keys
from fleet.jobs.reading import positions_of, read_jobs
from fleet.keys import ALL_BANDS, idempotency_digest
from fleet.scripts import ArgList
from rewarm.errors import (
    IdempotencyConflict,
    JobBodyTooLarge,
    JobCancelled,
    JobQuotaExceeded,
    JobsFull,
)
from rewarm.fallback import Chain
from rewarm.jobs import Job, JobSpec, JobState
from rewarm.messages import encode

_LIST_PAGE = 200
_CHUNK_ID = re.compile(r"(\d{1,18})-(\d{1,18})")
_BLOCKING_READERS = 32
_POLL_S = 0.25
_Chunks = list[Chunk]  # in the class, `list` is a method
_InChains = list[InChain | None]


class Jobs(LeasedJobs):
    """Every method may be repeated. Raises :class:`QueueUnavailable` where Redis is out of reach."""

    def __init__(self, client: FleetClient, limits: JobLimits | None = None) -> None:
        super().__init__(client, limits or JobLimits())
        self._reader: Redis | None = None
        self._blocking = asyncio.Semaphore(_BLOCKING_READERS)

    async def close(self) -> None:
        """End the connections of :meth:`events`."""
        if self._reader is not None:
            await self._reader.aclose(close_connection_pool=True)
            self._reader = None

    # --- clients -----------------------------------------------------------------------------------------------------

    async def submit(self, spec: JobSpec, body: bytes, *, idempotency: tuple[str, str] | None = None) -> Submitted:
        """The job waits for its model. ``idempotency`` is (key, SHA-256 of the client's body).

        Raise :class:`JobBodyTooLarge`, :class:`IdempotencyConflict` (the key was used with another body, or the id by
        another tenant), :class:`JobQuotaExceeded` at a bound of the tenant and :class:`JobsFull` at one of all, or
        where Redis is out of memory. Nothing is kept then.
        """
        place, arguments = self._new(spec, body, idempotency)
        keys = [*place.keys(self._keys), *ready_keys(self._keys, place.model)]
        return await self._create("job_submit", keys, [*arguments, spec.weight, spec.cost], place)

    async def adopt(self, ticket: str, gateway: str, spec: JobSpec, body: bytes) -> Submitted | None:
        """The interactive ``ticket`` of ``gateway`` becomes the job ``spec.id`` in one step, with the same band, score
        and age; ``spec`` names the ticket's model and band. None: the ticket no longer waits (granted, or gone).
        Errors as for :meth:`submit`; the ticket waits on.
        """
        place, arguments = self._new(spec, body, None)
        keys = place.keys(self._keys)
        keys += [self._keys.ticket(ticket), self._keys.since(place.model), self._keys.held(gateway)]
        keys += ready_keys(self._keys, place.model)
        submitted = await self._create("job_adopt", keys, [*arguments, ticket, gateway], place)
        return submitted if submitted.id else None

    async def get(self, id_: str) -> Job | None:
        return (await self.get_many([id_]))[0]

    async def get_many(self, ids: Sequence[str], *, positions: bool = True) -> list[Job | None]:
        """None for one that is not known (any more). Without ``positions`` two round trips instead of three."""
        return await read_jobs(self._client, ids, positions=positions)

    async def list(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int = 20,
        states: frozenset[JobState] | None = None,
        kinds: frozenset[str] | None = None,
    ) -> list[Job]:
        """Newest first, those after the job ``after``; empty where that one is not the tenant's."""
        name = self._keys.jobs_of(tenant)
        start = 0
        if after is not None:
            rank = await self._client.call("ZREVRANK", name, after)
            if rank is None:
                return []
            start = int(rank) + 1
        out: list[Job] = []
        while len(out) < limit:
            ids = await self._client.call("ZREVRANGE", name, start, start + _LIST_PAGE - 1)
            jobs = await self.get_many([id_.decode() for id_ in ids])
            out += [
                job
                for job in jobs
                if job is not None
                and (states is None or job.state in states)
                and (kinds is None or job.spec.kind in kinds)
            ]
            if len(ids) < _LIST_PAGE:
                break
            start += _LIST_PAGE
        return out[:limit]

    async def body(self, id_: str) -> bytes | None:
        """What the engine is to be sent. None once the job has ended."""
        data: bytes | None = await self._client.call("GET", self._keys.body(id_))
        return data

    async def result(self, id_: str) -> bytes | None:
        data: bytes | None = await self._client.call("GET", self._keys.result(id_))
        return data

    async def cancel(self, id_: str, tenant: str) -> Cancelled:
        """ "cancelling": it runs, and its worker has been told. "unknown" also for another tenant's."""
        tail: ArgList = [id_, tenant, JobCancelled.code, "it was cancelled before it ran"]
        while True:
            place = (await job_places(self._client, [id_])).get(id_)
            if place is None:
                return "unknown"
            outcome = (await self._scripts.run("job_cancel", place.keys(self._keys), tail)).decode()
            if outcome != "moved":  # to a fallback, since we looked; a chain has an end
                told: Cancelled = outcome
                return told

    async def delete(self, id_: str, tenant: str) -> Deleted:
        """An ended job goes at once, with its result and its key. "active": it has not ended, and stays."""
        return await ends.delete(self._client, id_, tenant)

    async def events(self, id_: str, after: str = "0-0", *, block_ms: int = 0, limit: int = 1000) -> _Chunks:
        """Output after the chunk ``after``, in order; waits up to ``block_ms`` (at most 2,000) for some, 0: not at all.

        A higher attempt than that of ``after`` means that the job was started again. ``Chunk.end`` is the last. Chunks
        are kept 30 minutes after the end; then, and for an unknown job, there are none: ask :meth:`get`. Raise
        ValueError where ``after`` is no id of a chunk.
        """
        if not _CHUNK_ID.fullmatch(after):
            raise ValueError(f"{after!r} is no id of a chunk")
        name = self._keys.out(id_)
        if block_ms <= 0:
            return _chunks(await self._client.call("XREAD", "COUNT", limit, "STREAMS", name, after))
        block_ms = min(block_ms, MAX_BLOCK_MS)
        if self._blocking.locked():
            # More readers than connections for them: these look more often instead.
            found = _chunks(await self._client.call("XREAD", "COUNT", limit, "STREAMS", name, after))
            if not found:
                await asyncio.sleep(min(_POLL_S, block_ms / 1000))
            return found
        async with self._blocking:
            reader = self._reader = self._reader or self._client.readers(MAX_BLOCK_MS / 1000, _BLOCKING_READERS)
            command = ("XREAD", "COUNT", limit, "BLOCK", block_ms, "STREAMS", name, after)
            with translated():
                return _chunks(await repeated(lambda: execute(reader, *command)))

    # --- the leader --------------------------------------------------------------------------------------------------

    async def in_chain(self, model: str, start: int, count: int) -> _InChains:
        """Jobs that wait for ``model``, from place ``start`` on, with where each is in its fallback chain; None for one
        that cannot be read."""
        return await moving.waiting_in_chain(self._client, model, start, count)

    async def move(self, job: InChain, chain: Chain, reason: str, leader: str, term: int) -> bool:
        """A job that waits goes on to ``chain.current``. False: it no longer waits there. Raise
        :class:`fleet.LostLeadership`."""
        return await moving.move(self._client, job, chain, reason, leader=(leader, term))

    async def expire(self, limit: int = 100) -> int:
        """Jobs past their start deadline end, results past their retention go. Return how many."""
        return await ends.expire(self._client, limit)

    # -----------------------------------------------------------------------------------------------------------------

    def _new(self, spec: JobSpec, body: bytes, idempotency: tuple[str, str] | None) -> tuple[JobPlace, ArgList]:
        if spec.band not in ALL_BANDS:
            raise ValueError(f"band {spec.band} is none of {ALL_BANDS}")
        if len(body) > self.limits.max_body:
            raise JobBodyTooLarge(f"the body has {len(body)} bytes; a job's may have {self.limits.max_body}")
        key, body_hash = idempotency or ("", "")
        digest = idempotency_digest(spec.tenant, key) if idempotency else ""
        place = JobPlace(spec.id, spec.queue(spec.model), spec.band, spec.tenant, digest)
        arguments: ArgList = [spec.id, place.model, spec.tenant, spec.band, encode(spec), body, body_hash]
        arguments += ["" if spec.start_deadline_ms is None else spec.start_deadline_ms, spec.max_attempts]
        arguments += [spec.max_loads, spec.retention_s * 1000, ",".join(spec.webhook.events) if spec.webhook else ""]
        arguments += [digest, self.limits.max_bytes_tenant, self.limits.max_bytes_total, self.limits.max_jobs_tenant]
        return place, arguments

    async def _create(self, script: str, keys: Sequence[str], arguments: ArgList, place: JobPlace) -> Submitted:
        """``id`` is '' where an adopted ticket no longer waits."""
        try:
            outcome, value = await self._scripts.run(script, keys, arguments)
        except RedisFull as error:
            raise JobsFull("Redis is out of memory: no more jobs can wait") from error
        match outcome:
            case b"OK":
                return Submitted(place.id, True, int(value))
            case b"GONE":
                return Submitted("", False, None)
            case b"SAME":
                id_ = value.decode()
                return Submitted(id_, False, (await positions_of(self._client, place.model, [id_]))[id_])
            case b"CONFLICT":
                raise IdempotencyConflict(f"this was used before, for {value.decode()}, with another body")
            case b"TENANT_BYTES":
                limit = self.limits.max_bytes_tenant
                raise JobQuotaExceeded(f"the tenant's jobs and results take {int(value)} bytes, of at most {limit}")
            case b"TENANT_JOBS":
                limit = self.limits.max_jobs_tenant
                raise JobQuotaExceeded(f"{int(value)} jobs of the tenant wait or run, of at most {limit}")
        raise JobsFull(f"jobs and results take {int(value)} bytes, of at most {self.limits.max_bytes_total}")


def _chunks(answer: Any) -> list[Chunk]:
    if not answer:
        return []
    ((_, entries),) = answer.items() if isinstance(answer, dict) else answer
    out = []
    for raw, fields in entries:
        id_ = raw.decode()
        attempt, _, seq = id_.partition("-")
        out.append(Chunk(id_, int(attempt), int(seq), fields.get(b"d", b""), end=b"end" in fields))
    return out
