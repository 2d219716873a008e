"""The queue of held requests: bands served strictly, start-time fair queueing over tenants inside a band.

A ticket is in exactly one place: *ready* (it waits), *lease* (a grant for it is on its gateway's stream and has not
been redeemed), or gone. Each method is one script, or a look and then a script that checks what was seen; each may be
repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet import _reap
from fleet._errors import RedisFull
from fleet._reap import Reaped
from fleet.client import FleetClient
from fleet.jobs.ends import fail_jobs
from fleet.jobs.limits import JOB_LEASE_MS, FailJobs
from fleet.jobs.places import JOB_GATEWAY, leases
from fleet.keys import ALL_BANDS, BANDS
from fleet.scripts import ArgList
from fleet.view import Waiting
from rewarm.errors import QueueFull, QueueUnavailable
from rewarm.jobs import JobLease
from rewarm.messages import SCHEMA_VERSION, Failure, Grant, Ticket, decode

GRANT_TTL_MS = 2000
"""A gateway redeems a grant within this time; the gate keeps the slot reserved a second longer."""

GRANT_MARGIN_MS = 1000
AGAIN_TTL_MS = 10_000
"""How long an abandoned ticket keeps its place for its client's retry."""

GATEWAY_TTL_MS = 6000
"""Three heartbeats of a gateway."""

UNKNOWN_AFTER_MS = 10_000
"""A ticket that its own gateway does not know is left alone this long: its enqueue may still be under way there."""

CLAIM_MEMORY_MS = 30_000
_SLACK = 8  # candidates beyond the offers: tickets of dead gateways, and what others claim in between
_LOOKS = 50
_POSITIONS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Enqueued:
    position: int  # 0-based over all bands
    reattached: bool  # took the place that an abandoned ticket had kept


@dataclass(frozen=True, slots=True)
class Claimed:
    """``grants`` went to the gateways; ``jobs`` are the claiming worker's to run, each with the offer in its ``grant``.

    The counts are of what is left after the claim.
    """

    grants: tuple[Grant, ...]
    waiting: int  # in the interactive bands: tickets, and jobs that were handed off
    highest_waiting_band: int | None
    jobs: tuple[JobLease, ...] = ()
    jobs_waiting: int = 0  # in the bands of jobs


class Queue:
    def __init__(self, client: FleetClient) -> None:
        self._client = client
        self._keys = client.keys
        self._scripts = client.scripts

    # --- gateways ----------------------------------------------------------------------------------------------------

    async def enqueue(self, ticket: Ticket, *, max_waiting: int) -> Enqueued:
        """Wait for a grant. A repeat changes nothing: a ticket that waits keeps its place, a granted one its grant.

        Raise :class:`QueueFull` when ``max_waiting`` tickets wait for the model, or when Redis is out of memory.
        """
        if ticket.band not in BANDS:
            raise ValueError(f"band {ticket.band} is none of {BANDS}")
        keys = self._scripts.place_keys(ticket.id, ticket.model, ticket.band, ticket.gateway)
        keys += [
            self._keys.demand,
            self._keys.bell,
            self._keys.again(ticket.again) if ticket.again else self._keys.ticket(ticket.id),
            *(self._keys.ready(ticket.model, band) for band in BANDS),
        ]
        arguments: ArgList = [ticket.id, ticket.model, ticket.tenant, ticket.gateway, ticket.band]
        arguments += [ticket.weight, ticket.cost, ticket.bytes, max_waiting, int(bool(ticket.again)), GATEWAY_TTL_MS]
        try:
            outcome, position = await self._scripts.run("enqueue", keys, arguments)
        except RedisFull as error:
            raise QueueFull("Redis is out of memory: no more requests can wait") from error
        if outcome == b"FULL":
            raise QueueFull(f"{position} requests wait for {ticket.model!r} already, of at most {max_waiting}")
        return Enqueued(int(position), outcome == b"AGAIN")

    async def redeem(self, ticket_id: str, grant: str, *, gateway: str | None = None) -> bool:
        """The gate took the request: the ticket is done with. False when another grant was on offer for it by now, or
        none (the grant came too late and the ticket went back, or is gone); a ticket of ``gateway`` is deleted even so.
        """
        return await self._on_ticket("redeem", ticket_id, [grant], gateway)

    async def decline(self, ticket_id: str, grant: str) -> bool:
        """The gate refused the grant: back to the old place at once, without waiting for the reap."""
        place = (await _reap.places(self._client, [ticket_id])).get(ticket_id)
        if place is None:
            return False
        return await _reap.put_back(self._client, [place], grant) == (1, 0)

    async def cancel(self, ticket_id: str) -> bool:
        """The client left for good, or its patience is over. False when the ticket was gone already."""
        return await self._on_ticket("cancel", ticket_id, [])

    async def abandon(self, ticket: Ticket) -> None:
        """The client left and may come back: cancel, but the place stays ten seconds under ``ticket.again``."""
        if not ticket.again:
            await self.cancel(ticket.id)
            return
        keys = self._scripts.place_keys(ticket.id, ticket.model, ticket.band, ticket.gateway)
        keys.append(self._keys.again(ticket.again))
        arguments: ArgList = [ticket.id, ticket.model, ticket.band, ticket.gateway, AGAIN_TTL_MS]
        await self._scripts.run("abandon", keys, arguments)

    async def positions(self, model: str, ids: Sequence[str]) -> dict[str, int | None]:
        """0-based over all bands; None for a ticket that does not wait (granted, gone, never there)."""
        keys = [self._keys.ready(model, band) for band in BANDS]
        out: dict[str, int | None] = {}
        for start in range(0, len(ids), _POSITIONS_AT_ONCE):
            some = ids[start : start + _POSITIONS_AT_ONCE]
            found = await self._scripts.run("positions", keys, some)
            out.update((id_, None if n < 0 else int(n)) for id_, n in zip(some, found, strict=True))
        return out

    async def gateway_beat(
        self, gateway: str, *, ttl_ms: int = GATEWAY_TTL_MS, held: Sequence[tuple[str, str]] | None = None
    ) -> list[str]:
        """The gateway lives for another ``ttl_ms``. ``held`` is every ticket (model, id) that it holds, or None to skip
        the comparison.

        Return those that are neither waiting nor granted, for the gateway to enqueue again if it still holds them:
        Redis came back empty, or without its last second. The other way round, tickets that lie here and that the
        gateway does not know (their client left while Redis was away) are removed once they are ten seconds old.
        """
        keys = [self._keys.gateways, self._keys.held(gateway), self._keys.grants(gateway), self._keys.pulse]
        arguments: ArgList = [gateway, ttl_ms, int(held is not None), *(id_ for _, id_ in held or ())]
        missing, unknown = await self._scripts.run("gateway_beat", keys, arguments)
        if unknown:
            before = await self._client.time_ms() - UNKNOWN_AFTER_MS
            found = await _reap.places(self._client, [id_.decode() for id_ in unknown])
            for place in found.values():
                if place.created_ms < before and place.gateway == gateway:
                    await self.cancel(place.ticket)
        return [id_.decode() for id_ in missing]

    async def gateway_leave(self, gateway: str) -> None:
        """The gateway stops: whatever it still has here is dropped at once. What this cannot finish, a reap does."""
        await self._scripts.run("gateway_leave", [self._keys.gateways], [gateway])
        await _reap.bury(self._client, gateway, limit=100_000)

    # --- workers -----------------------------------------------------------------------------------------------------

    async def claim(
        self,
        model: str,
        worker: str,
        replica: str,
        endpoint: str,
        offers: Sequence[str],
        *,
        request_id: str,
        max_jobs: int = 0,
        boot: str = "",
    ) -> Claimed:
        """Turn the next tickets into grants, one for each of ``offers`` (grant ids reserved at the replica's gate).

        The grants go to the gateways' streams by themselves; what is returned tells the agent which offers to keep.
        There may be fewer than offers. The same ``request_id`` gets the same answer again: repeat it when a reply was
        lost.

        Jobs are leased to ``boot``, the worker's run, in the order of service: at most ``max_jobs`` of the job bands,
        and those handed off from a gateway like the tickets around them.
        """
        wanted = len(offers)
        for look in range(_LOOKS):
            candidates = await self._heads(model, wanted + _SLACK * (look + 1), max_jobs)
            keys = [self._keys.lease, self._keys.claim(request_id), self._keys.gateways, self._keys.pulse]
            keys += [self._keys.since(model), self._keys.jobs_since(model), self._keys.due, self._keys.hooks]
            keys += self._scripts.band_keys(model)
            arguments: ArgList = [model, worker, replica, endpoint, SCHEMA_VERSION, len(ALL_BANDS), wanted]
            arguments += [
                GRANT_TTL_MS,
                GRANT_MARGIN_MS,
                CLAIM_MEMORY_MS,
                boot,
                max_jobs,
                len(BANDS),
                JOB_LEASE_MS,
                *offers,
            ]
            for ticket, gateway in candidates:
                keys.append(self._keys.ticket(ticket))
                if gateway == JOB_GATEWAY:
                    keys += [self._keys.outbox(ticket), self._keys.out(ticket)]
                else:
                    keys += [self._keys.held(gateway), self._keys.grants(gateway)]
                arguments += [ticket, gateway]
            answer = await self._scripts.run("claim", keys, arguments)
            if answer[0] == b"OK":
                _, events, waiting, highest, leased, jobs_waiting = answer
                grants = tuple(decode(event, Grant) for event in events)
                jobs = await leases(self._client, model, replica, leased)
                return Claimed(grants, int(waiting), None if highest < 0 else int(highest), jobs, int(jobs_waiting))
        raise QueueUnavailable(f"others claim the tickets of {model!r} faster than this worker can look at them")

    async def waiting(self, models: Iterable[str]) -> dict[str, Waiting]:
        names = list(models)
        commands: list[tuple[str | int, ...]] = []
        for model in names:
            for since in (self._keys.since(model), self._keys.jobs_since(model)):
                commands += [("ZCARD", since), ("ZRANGE", since, 0, 0, "WITHSCORES")]
            commands += [("ZCARD", self._keys.ready(model, band)) for band in ALL_BANDS]
        answers = await self._client.pipeline(commands)
        width = len(commands) // max(1, len(names))
        out: dict[str, Waiting] = {}
        for i, model in enumerate(names):
            count, oldest, jobs, oldest_job, *lengths = answers[i * width : (i + 1) * width]
            highest = next((band for band, length in zip(ALL_BANDS, lengths, strict=True) if length), None)
            # Not one reading: something may have moved between the counts.
            handed_off = max(0, sum(lengths[: len(BANDS)]) - count)
            out[model] = Waiting(int(count), _score(oldest), highest, int(jobs), _score(oldest_job), handed_off)
        return out

    # --- the leader --------------------------------------------------------------------------------------------------

    async def reap(self, *, limit: int = 100) -> Reaped:
        """Unredeemed grants go back to their old place if their gateway lives; all that a dead gateway left is dropped.
        Jobs whose worker did not renew them go back too, or end when their attempts are used up. At most about
        ``limit`` of each kind: call it every second.
        """
        return await _reap.reap(self._client, limit)

    async def fail_all(
        self,
        model: str,
        code: str,
        message: str,
        failure: Failure | None,
        leader: str,
        term: int,
        *,
        jobs: FailJobs = "keep",
    ) -> int:
        """Every ticket that waits for ``model`` leaves the queue, and its gateway is told why. Return how many.

        Waiting jobs: "keep" leaves them alone; "count" says that a load failed, which ends those that have waited
        through as many as they may; "fail" is for a model that is gone: it ends them all with ``code`` and ``message``,
        and forgets the queue. Raise :class:`fleet.LostLeadership` when ``leader``'s ``term`` is over.
        """
        told = await _reap.fail_all(self._client, model, code, message, failure, leader, term)
        if jobs != "keep":
            await fail_jobs(self._client, model, code, message, failure, leader, term, every=jobs == "fail")
        if jobs == "fail":
            await _reap.forget_queue(self._client, model, leader, term)
        return told

    # -----------------------------------------------------------------------------------------------------------------

    async def _on_ticket(self, script: str, ticket: str, arguments: list[str], gateway: str | None = None) -> bool:
        place = (await _reap.places(self._client, [ticket])).get(ticket)
        if place is None or (gateway is not None and gateway != place.gateway):
            return False
        return bool(await self._scripts.run(script, place.keys(self._scripts), [*place.arguments(), *arguments]))

    async def _heads(self, model: str, count: int, max_jobs: int) -> list[tuple[str, str]]:
        """The first ``count`` tickets in the order of service, with their gateways ('' for one that just went)."""
        bands = ALL_BANDS if max_jobs else BANDS
        heads = await self._client.pipeline([("ZRANGE", self._keys.ready(model, band), 0, count - 1) for band in bands])
        ids = [id_.decode() for band in heads for id_ in band][:count]
        gateways = await self._client.pipeline([("HGET", self._keys.ticket(id_), "gateway") for id_ in ids])
        return [(id_, (gateway or b"").decode()) for id_, gateway in zip(ids, gateways, strict=True)]


def _score(members: list[object]) -> int:
    """The score of the first of ``ZRANGE … WITHSCORES``, which redis-py gives flat or as pairs, by version."""
    if not members:
        return 0
    first = members[0]
    value = first[1] if isinstance(first, tuple | list) else members[1]
    return int(float(value))  # type: ignore[arg-type]
