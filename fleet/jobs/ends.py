"""What ends jobs from the outside: leases that ran out, start deadlines, retention, a leader that gives a model up.

All look first and then run, for each job, a script that checks again under Redis's own clock.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from fleet._leadership import LostLeadership
from fleet.client import FleetClient
from fleet.jobs.limits import Deleted
from fleet.jobs.moving import in_chain, models, move
from fleet.jobs.places import JobPlace, job_places
from fleet.keys import Keys
from fleet.scripts import Call
from rewarm.errors import JobAttemptsExhausted, JobCancelled, JobExpired
from rewarm.fallback import after_last_attempt
from rewarm.messages import Failure, encode

_AT_ONCE = 200

_log = logging.getLogger("rewarm.fleet.jobs")


async def return_lost(client: FleetClient, ids: Sequence[str]) -> tuple[int, int]:
    """Jobs whose lease ran out: (back to their places or on down their chains, ended)."""
    moved = await _pass_on(client, ids)
    places = await job_places(client, [id_ for id_ in ids if id_ not in moved])
    tail = ["", "", "1", "", JobAttemptsExhausted.code, JobCancelled.code]
    calls = [(place.keys(client.keys), [id_, *tail]) for id_, place in places.items()]
    outcomes = await client.scripts.run_many("job_return", calls)
    return len(moved) + outcomes.count(b"returned"), outcomes.count(b"failed") + outcomes.count(b"cancelled")


async def _pass_on(client: FleetClient, ids: Sequence[str]) -> frozenset[str]:
    """Those of which the last attempt was lost go on to the next models of their chains, as their worker would have
    done. Return which."""
    exhausted = [
        job
        for job in await in_chain(client, ids)
        if job is not None and job.chain.links and job.spent >= job.spec.max_attempts
    ]
    known = await models(client, sorted({link for job in exhausted for link in job.chain.links}))
    moved = set()
    for job in exhausted:
        step = after_last_attempt(job.chain, known)
        if step is not None and await move(client, job, step.chain, step.reason):
            moved.add(job.spec.id)
            _log.info(
                "job passed on, its worker is gone job=%s from=%s to=%s",
                *(job.spec.id, job.chain.current, step.chain.current),
            )
    return frozenset(moved)


async def expire(client: FleetClient, limit: int) -> int:
    keys = client.keys
    due, ended = await client.scripts.run("job_due", [keys.due, keys.ended], [limit])
    places = await job_places(client, [id_.decode() for id_ in due])
    message = "it was not started before its start deadline"
    calls: list[Call] = [(place.keys(keys), [id_, JobExpired.code, message]) for id_, place in places.items()]
    done = sum(await client.scripts.run_many("job_expire", calls))
    return int(done) + await forget(client, [entry.decode() for entry in ended])


async def forget(client: FleetClient, entries: Sequence[str]) -> int:
    """Entries of `ended` whose time is over, with all that they stand for."""
    keys = client.keys
    parts = [entry.split("|", 3) for entry in entries]
    places = await job_places(client, [id_ for _, id_, _, _ in parts])
    calls: list[Call] = [
        (_all_keys(keys, id_, tenant, places.get(id_)), [entry, kind, id_, kept_bytes, tenant])
        for entry, (kind, id_, kept_bytes, tenant) in zip(entries, parts, strict=True)
    ]
    return int(sum(await client.scripts.run_many("job_forget", calls)))


async def delete(client: FleetClient, id_: str, tenant: str) -> Deleted:
    place = (await job_places(client, [id_])).get(id_)
    outcome = await client.scripts.run("job_delete", _all_keys(client.keys, id_, tenant, place), [id_, tenant])
    answer: Deleted = outcome.decode()
    return answer


def _all_keys(keys: Keys, id_: str, tenant: str, place: JobPlace | None) -> list[str]:
    names = [keys.ended, keys.store, keys.jobs_of(tenant), keys.hooks, keys.ticket(id_), keys.out(id_)]
    names += [keys.spec(id_), keys.body(id_), keys.result(id_), keys.outbox(id_), keys.hooked(id_)]
    return names if place is None or not place.idempotency else [*names, keys.idempotency(place.idempotency)]


async def fail_jobs(
    client: FleetClient,
    model: str,
    code: str,
    message: str,
    failure: Failure | None,
    leader: str,
    term: int,
    *,
    every: bool,
) -> int:
    """End all jobs that wait for ``model``, or those that a failed load was one too many for. Return how many.

    The same failure counts once, however often it is reported. Raise :class:`LostLeadership`.
    """
    keys = client.keys
    what = encode(failure) if failure is not None else message.encode()
    mark = f"{term}:{hashlib.sha256(what).hexdigest()[:16]}"
    total = int(await client.call("ZCARD", keys.jobs_since(model)))
    seen = ended = 0
    # By pages, for a million may wait: what has ended leaves the set, and what came since stands at its end.
    while seen < total:
        start = seen - ended
        page = await client.call("ZRANGE", keys.jobs_since(model), start, start + _AT_ONCE - 1)
        some = [id_.decode() for id_ in page]
        if not some:
            break
        seen += len(some)
        if not every:
            names = [keys.leader, keys.lease, *(keys.ticket(id_) for id_ in some)]
            over = _checked(await client.scripts.run("job_loads", names, [leader, term, mark, *some]), leader, term)
            some = [id_.decode() for id_ in over]
        places = await job_places(client, some)
        calls: list[Call] = [
            ([*place.keys(keys), keys.leader], [id_, leader, term, code, message]) for id_, place in places.items()
        ]
        for outcome in await client.scripts.run_many("job_fail", calls):
            ended += _checked(outcome, leader, term)
    return ended


def _checked(outcome: Any, leader: str, term: int) -> Any:
    if outcome == -1:
        raise LostLeadership(f"{leader} no longer leads in term {term}")
    return outcome
