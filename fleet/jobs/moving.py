"""Jobs on their way down the fallback chain: where each one is, and the step to the next model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet._leadership import LostLeadership
from fleet.client import FleetClient
from fleet.jobs.places import JOB_GATEWAY, JobPlace
from fleet.scripts import ArgList
from rewarm.fallback import Chain
from rewarm.jobs import JobSpec
from rewarm.messages import UnknownSchema, decode


@dataclass(frozen=True, slots=True)
class InChain:
    """A job, and where in its chain. ``chain.since_s`` is Redis time, in seconds."""

    place: JobPlace
    spec: JobSpec
    chain: Chain
    spent: int = 0  # attempts at ``chain.current``, one that runs included


async def waiting_in_chain(client: FleetClient, model: str, start: int, count: int) -> list[InChain | None]:
    """The jobs that wait for ``model`` from place ``start`` on, the oldest first; None for one that cannot be read."""
    ids = await client.call("ZRANGE", client.keys.jobs_since(model), start, start + count - 1)
    return await in_chain(client, [id_.decode() for id_ in ids])


async def in_chain(client: FleetClient, ids: Sequence[str]) -> list[InChain | None]:
    """None for what is no job (any more), and for one that cannot be read."""
    fields = ("gateway", "model", "band", "tenant", "idem", "chain", "moved", "created", "spent")
    commands: list[tuple[str | int, ...]] = [("HMGET", client.keys.ticket(id_), *fields) for id_ in ids]
    commands += [("GET", client.keys.spec(id_)) for id_ in ids]
    answers = await client.pipeline(commands)
    return [_in_chain(id_, one, data) for id_, one, data in zip(ids, answers, answers[len(ids) :], strict=False)]


async def models(client: FleetClient, names: Sequence[str]) -> frozenset[str]:
    """Those of ``names`` that are in the catalogue."""
    found = await client.pipeline([("HEXISTS", client.keys.catalogue, name) for name in names])
    return frozenset(name for name, known in zip(names, found, strict=True) if known)


async def move(
    client: FleetClient,
    job: InChain,
    chain: Chain,
    reason: str,
    *,
    leader: tuple[str, int] | None = None,
    lease: tuple[str, int] | None = None,
) -> bool:
    """On to ``chain.current``, for the leader (owner, term), for the worker's run that holds its ``lease`` (run,
    attempt), or, without either, because the lease of its last attempt ran out. False: the job is no longer there.
    Raise LostLeadership."""
    keys, place = client.keys, job.place
    owner, term, attempt = _who(leader, lease)
    to = job.spec.queue(chain.current)
    names = [*place.keys(keys), keys.leader, keys.ready(to, place.band), keys.virtual_time(to, place.band)]
    names.append(keys.jobs_since(to))
    arguments: ArgList = [place.id, owner, term, attempt, place.model, mark(job.chain), to, mark(chain), reason]
    arguments.append(job.spec.cost / job.spec.weight)
    outcome = await client.scripts.run("job_move", names, arguments)
    if outcome == -1:
        raise LostLeadership(f"{owner} no longer leads in term {term}")
    return bool(outcome)


def _who(leader: tuple[str, int] | None, lease: tuple[str, int] | None) -> tuple[str, int | str, int | str]:
    if leader is not None:
        return (*leader, "")
    return ("", "", "") if lease is None else (lease[0], "", lease[1])


def mark(chain: Chain) -> str:
    """Where in its chain a job is, as its hash keeps it; '' for the beginning."""
    if not chain.at:
        return ""
    return f"{chain.at}{'L' if chain.late else ''}{'B' if chain.back else ''}"


def chain_of(spec: JobSpec, kept: str, since_ms: float) -> Chain:
    """The reverse of :func:`mark`."""
    at = int(kept.rstrip("LB") or 0)
    links: Sequence[str] = spec.fallback
    return Chain(spec.model, tuple(links), min(at, len(links)), since_ms / 1000, late="L" in kept, back="B" in kept)


def _in_chain(id_: str, one: Sequence[bytes | None], data: bytes | None) -> InChain | None:
    gateway, model, band, tenant, idem, kept, moved, created, spent = one
    if gateway != JOB_GATEWAY.encode() or data is None or model is None or band is None or tenant is None:
        return None
    try:
        spec = decode(data, JobSpec)
    except UnknownSchema:
        return None
    place = JobPlace(id_, model.decode(), int(band), tenant.decode(), (idem or b"").decode())
    return InChain(place, spec, chain_of(spec, (kept or b"").decode(), float(moved or created or 0)), int(spent or 0))
