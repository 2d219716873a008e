"""Who holds memory on a worker, and who asks for it, as :mod:`controller.eviction` looks at them."""

from __future__ import annotations

from controller.capacity import leaves, on_worker, sleep_frees, stop_frees
from controller.eviction import Asker, Resident, Use
from controller.round import Round
from controller.state import Replica
from rewarm.messages import CatalogueEntry, WorkerBeat

Rank = tuple[int, Use, int, str]


def asker_of(round_: Round, entry: CatalogueEntry) -> Asker:
    """More replicas of a model that serves are wanted by nobody in particular: what is there serves."""
    model = entry.model
    found, pending = round_.view.waiting.get(model), round_.of(model).pending
    use, since_ms = Use.NOBODY, pending.since_ms if pending is not None else round_.now_ms
    if found is not None and not any(r.ready and not r.rest_wanted for r in round_.serving(model)):
        if round_.tickets(model):
            use, since_ms = Use.REQUESTS, found.oldest_ms
        elif round_.jobs(model):
            use, since_ms = Use.JOBS, found.oldest_job_ms
    return Asker(model, entry.policy.priority, use, since_ms or round_.now_ms)


def rank(round_: Round, entry: CatalogueEntry) -> Rank:
    """Who is given room first: the more important model, requests before jobs, then what has waited longest."""
    asker = asker_of(round_, entry)
    return (asker.priority, asker.use, asker.since_ms, entry.model)


def residents(round_: Round, beat: WorkerBeat, asker: str) -> list[Resident]:
    """Replicas of others than ``asker`` that hold memory on the worker, and stay unless they are told to leave."""
    here = [r for r in on_worker(round_, beat.worker) if not leaves(r)]
    return [
        _resident(round_, replica, sole=sum(r.model == replica.model for r in here) == 1)
        for replica in here
        if replica.model != asker and (replica.asleep or not replica.rest_wanted)
    ]


def _resident(round_: Round, replica: Replica, *, sole: bool) -> Resident:
    entry = round_.view.catalogue.get(replica.model)
    report = replica.report
    use, waiting = _use(round_, replica)
    ready_at_ms = report.ready_at_ms if report is not None else 0
    activity_ms = report.last_activity_ms if report is not None else 0
    return Resident(
        replica=replica.id,
        model=replica.model,
        priority=entry.policy.priority if entry is not None else 1,
        use=use,
        ready_at_ms=ready_at_ms,
        last_used_ms=round_.now_ms if replica.busy else max(ready_at_ms, activity_ms),
        running=replica.busy,
        waiting=waiting,
        keeps="" if entry is None else _keeps(round_, entry, replica),
        ahead=replica.ahead,
        last_resort=entry is not None and _kept_asleep(round_, entry, replica),
        loading=not (replica.ready or replica.asleep),
        asleep=replica.asleep,
        sole=sole,
        stop_frees=stop_frees(replica),
        sleep_frees=sleep_frees(round_, replica),
    )


def _use(round_: Round, replica: Replica) -> tuple[Use, int]:
    tickets, jobs = round_.tickets(replica.model), round_.jobs(replica.model)
    if tickets:
        return Use.REQUESTS, tickets
    if jobs:
        return Use.JOBS, jobs  # what runs may be a request; jobs that wait beside it are what it stays for
    return (Use.REQUESTS if replica.busy else Use.NOBODY), 0


def _keeps(round_: Round, entry: CatalogueEntry, replica: Replica) -> str:
    if entry.policy.pinned:
        return "is pinned"
    least = entry.policy.min_replicas
    kept = least and replica.id in _first(round_, entry, least)
    return f"is kept loaded (min_replicas is {least})" if kept else ""


def _kept_asleep(round_: Round, entry: CatalogueEntry, replica: Replica) -> bool:
    least = entry.policy.min_asleep
    return bool(least) and replica.id in _first(round_, entry, least)


def _first(round_: Round, entry: CatalogueEntry, many: int) -> set[str]:
    """So many of its replicas, those that are up before the others."""
    ready_first = sorted(round_.serving(entry.model), key=lambda r: (not r.ready, r.id))
    return {r.id for r in ready_first[:many]}
