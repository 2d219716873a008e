"""The outbox of what clients want to be told about their jobs: who tells it next, and how far it is.

A job's events lie in a list, written by the scripts that change its state, and only the first one can be claimed: so
they are told in order. A claim is a lease, which another gateway takes over when its holder is gone; an event may
therefore be told twice, under the same ``seq``, and never not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fleet.client import FleetClient
from fleet.scripts import ArgList, Call


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event of one job, claimed. Times in ms of Redis."""

    job: str
    event: str  # completed | failed | cancelled | expired | in_progress
    seq: int  # 0 for the job's first event; the same at every try
    tries: int  # failed ones before this
    created_ms: int
    now_ms: int
    claim: str


@dataclass(frozen=True, slots=True)
class HookStatus:
    """How far the telling of one job's events is."""

    waiting: int  # events not yet dealt with, the one under way included
    delivered: int
    given_up: int
    tries: int  # in all
    last_error: str | None  # None once the latest event was delivered
    next_ms: int | None  # the next try, not before; None when nothing waits, or a try is under way


class Hooks:
    """All methods may be repeated, and raise :class:`rewarm.errors.QueueUnavailable` when Redis is away."""

    def __init__(self, client: FleetClient) -> None:
        self._client = client

    async def claim(self, claim: str, limit: int, lease: timedelta) -> list[Delivery]:
        """At most ``limit`` deliveries that are due, the longest due first, for ``lease`` each.

        ``claim`` is new for every call that is no repeat: it is what the other methods prove the lease with.
        """
        keys = self._client.keys
        due = await self._client.scripts.run("hook_due", [keys.hooks], [limit])
        jobs = [job.decode() for job in due]
        lease_ms = int(lease.total_seconds() * 1000)
        calls: list[Call] = [([*self._keys(job), keys.ticket(job)], [job, claim, lease_ms]) for job in jobs]
        found = await self._client.scripts.run_many("hook_claim", calls)
        return [_delivery(job, claim, told) for job, told in zip(jobs, found, strict=True) if told]

    async def done(self, delivery: Delivery) -> bool:
        """It was told. False where the lease is another's by now."""
        return await self._done(delivery, "delivered", "")

    async def give_up(self, delivery: Delivery, error: str) -> bool:
        """It will not be told; the job's next event may be."""
        return await self._done(delivery, "given_up", error)

    async def retry(self, delivery: Delivery, delay: timedelta, error: str) -> bool:
        """A try failed: the next one after ``delay``."""
        return await self._later(delivery, delay, 1, error)

    async def defer(self, delivery: Delivery, delay: timedelta) -> bool:
        """Nothing was tried: again after ``delay``."""
        return await self._later(delivery, delay, 0, "")

    async def drop(self, job: str) -> None:
        """Forget everything that was to be told about a job that is gone."""
        await self._client.scripts.run("hook_drop", self._keys(job), [job])

    async def status(self, jobs: Sequence[str]) -> list[HookStatus]:
        """Of each job, in that order; all zero for a job without events."""
        keys = self._client.keys
        fields = ("delivered", "given_up", "tried", "last_error", "claim")
        found = await self._client.pipeline(
            [
                command
                for job in jobs
                for command in (
                    ("LLEN", keys.outbox(job)),
                    ("HMGET", keys.hooked(job), *fields),
                    ("ZSCORE", keys.hooks, job),
                )
            ]
        )
        return [_status(*found[at : at + 3]) for at in range(0, len(found), 3)]

    async def _done(self, delivery: Delivery, how: str, error: str) -> bool:
        arguments: ArgList = [delivery.job, delivery.claim, how, error]
        return bool(await self._client.scripts.run("hook_done", self._keys(delivery.job), arguments))

    async def _later(self, delivery: Delivery, delay: timedelta, spent: int, error: str) -> bool:
        keys = [self._client.keys.hooks, self._client.keys.hooked(delivery.job)]
        delay_ms = int(delay.total_seconds() * 1000)
        arguments: ArgList = [delivery.job, delivery.claim, delay_ms, spent, error]
        return bool(await self._client.scripts.run("hook_later", keys, arguments))

    def _keys(self, job: str) -> list[str]:
        keys = self._client.keys
        return [keys.hooks, keys.outbox(job), keys.hooked(job)]


def _delivery(job: str, claim: str, told: Any) -> Delivery:
    event, created, seq, tries, now = told
    return Delivery(job, event.decode(), int(seq), int(tries), int(float(created)), int(float(now)), claim)


def _status(waiting: Any, fields: Any, score: Any) -> HookStatus:
    delivered, given_up, tried, error, claim = fields  # claimed, its score is the end of a lease
    return HookStatus(
        waiting=int(waiting),
        delivered=int(delivered or 0),
        given_up=int(given_up or 0),
        tries=int(tried or 0),
        last_error=error.decode(errors="replace") if error else None,
        next_ms=int(float(score)) if score is not None and waiting and not claim else None,
    )
