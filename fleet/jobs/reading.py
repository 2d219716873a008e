"""A job's hash and spec in Redis → :class:`rewarm.jobs.Job`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fleet.client import FleetClient
from fleet.jobs.moving import chain_of
from fleet.jobs.places import ready_keys
from rewarm.jobs import TERMINAL, Job, JobSpec, JobState
from rewarm.messages import UnknownSchema, decode

_POSITIONS_AT_ONCE = 1000
_FIELDS = (
    *("gateway", "state", "created", "started", "ended", "expires", "attempt", "spent", "loads", "worker", "replica"),
    *("cancel", "tokens", "chunks", "code", "message", "http", "result", "usage", "model", "why", "chain"),
)
_log = logging.getLogger("rewarm.fleet.jobs")


async def read_jobs(client: FleetClient, ids: Sequence[str], *, positions: bool = True) -> list[Job | None]:
    """In three round trips; None for what is no job, or none that this process can read."""
    if not ids:
        return []
    now_ms = await client.time_ms()
    commands: list[tuple[str | int, ...]] = [("HMGET", client.keys.ticket(id_), *_FIELDS) for id_ in ids]
    commands += [("GET", client.keys.spec(id_)) for id_ in ids]
    answers = await client.pipeline(commands)
    fields = [dict(zip(_FIELDS, values, strict=True)) for values in answers[: len(ids)]]
    waiting: dict[str, list[str]] = {}
    for id_, one in zip(ids, fields, strict=True):
        if positions and one["state"] == b"queued":
            waiting.setdefault(one["model"].decode(), []).append(id_)
    places: dict[str, int | None] = {}
    for model, some in waiting.items():
        places |= await positions_of(client, model, some)
    specs = answers[len(ids) :]
    return [_job(id_, one, data, places.get(id_), now_ms) for id_, one, data in zip(ids, fields, specs, strict=True)]


async def positions_of(client: FleetClient, model: str, ids: Sequence[str]) -> dict[str, int | None]:
    """0-based over all bands of the model; None for one that does not wait."""
    keys = ready_keys(client.keys, model)
    out: dict[str, int | None] = {}
    for start in range(0, len(ids), _POSITIONS_AT_ONCE):
        some = ids[start : start + _POSITIONS_AT_ONCE]
        found = await client.scripts.run("positions", keys, some)
        out.update((id_, None if n < 0 else int(n)) for id_, n in zip(some, found, strict=True))
    return out


def _job(id_: str, one: Mapping[str, Any], data: bytes | None, position: int | None, now_ms: int) -> Job | None:
    if one["gateway"] != b"@job" or data is None:
        return None
    try:
        spec = decode(data, JobSpec)
    except UnknownSchema as error:
        _log.error("job not shown: its spec cannot be read job=%s error=%s", id_, error)
        return None
    state = JobState(one["state"].decode())
    created, started, ended = (_number(one[name]) for name in ("created", "started", "ended"))
    assert created is not None
    model = chain_of(spec, _text(one["chain"]) or "", 0.0).current
    until = started if started is not None and state is not JobState.QUEUED else ended if ended is not None else now_ms
    return Job(
        spec=spec,
        state=state,
        created_ms=created,
        started_ms=started,
        ended_ms=ended,
        expires_ms=_number(one["expires"]),
        attempt=_number(one["attempt"]) or 0,
        spent=_number(one["spent"]) or 0,
        loads=_number(one["loads"]) or 0,
        worker=_text(one["worker"]),
        replica=_text(one["replica"]),
        cancel=one["cancel"] is not None and state not in TERMINAL,
        tokens=_number(one["tokens"]) or 0,
        chunks=_number(one["chunks"]) or 0,
        error_code=_text(one["code"]),
        error_message=_text(one["message"]),
        http_status=_number(one["http"]),
        position=position,
        result_bytes=_number(one["result"]) or 0,
        usage=msgspec.msgpack.decode(one["usage"]) if one["usage"] else None,
        waited_ms=max(0, until - created),
        model=model,
        fallback=(_text(one["why"]) or "") if model != spec.model else "",
    )


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(float(value))


def _text(value: bytes | None) -> str | None:
    return value.decode() if value else None
