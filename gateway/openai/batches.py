"""``/v1/batches``: begin, look, list, cancel. What is done about them is :mod:`gateway.openai.runner`'s."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec

from fleet import JOB_BANDS, Batches
from gateway.http import Answer, Request
from gateway.intake import read_body
from gateway.jobs import JobDesk, idempotency
from gateway.keys import Caller, Keyring
from gateway.openai.answers import json_answer, only, page_limit
from gateway.parse import ENDPOINTS, not_json
from rewarm.config import Priority
from rewarm.errors import BatchEnded, BatchNotFound, IdempotencyConflict, InvalidRequest, NotFound, UnknownEndpoint
from rewarm.files import BATCH_ENDED, Batch, BatchSpec
from rewarm.ids import job_id
from rewarm.units import parse_duration

MAX_WINDOW_S = 7 * 86400.0
_MAX_BODY = 64 * 2**10

_Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]


class _Asked(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: _Metadata | None = None
    invalid_lines: Literal["refuse", "skip"] = "refuse"  # ours: whether one bad line ends the batch
    priority: Priority = "low"  # ours: a batch is for the night


class BatchPages:
    def __init__(self, batches: Batches, desk: JobDesk, keys: Keyring) -> None:
        self._batches = batches
        self._desk = desk
        self._keys = keys

    async def create(self, request: Request, rest: str) -> Answer:
        """With an ``Idempotency-Key`` a repeat finds the batch that it made."""
        caller = self._keys.identify(request.headers)
        data = await read_body(request, _MAX_BODY)
        key = idempotency(request.headers, data)
        spec = self._spec(caller, _read(data), None if key is None else key[0])
        await self._batches.create(spec)
        batch = await self._get(spec.id, caller)
        known = batch.spec
        asked = (known.input_file, known.endpoint, known.completion_window, known.metadata, known.invalid_lines)
        if asked != (spec.input_file, spec.endpoint, spec.completion_window, spec.metadata, spec.invalid_lines):
            raise IdempotencyConflict("this Idempotency-Key was used for another batch")
        return json_answer(batch_object(batch))

    def _spec(self, caller: Caller, asked: _Asked, key: str | None) -> BatchSpec:
        if asked.endpoint not in ENDPOINTS:
            raise UnknownEndpoint(f"{asked.endpoint!r} is none of {', '.join(ENDPOINTS)}", param="endpoint")
        now = self._desk.now_ms()
        id_ = job_id().partition("_")[2]
        if key is not None:
            id_ = hashlib.sha256(f"{caller.tenant}\0{key}".encode()).hexdigest()[:26]
        return BatchSpec(
            id="batch_" + id_,
            tenant=caller.tenant,
            endpoint=asked.endpoint,
            input_file=asked.input_file_id,
            completion_window=asked.completion_window,
            created_ms=now,
            expires_ms=now + int(_window_s(asked.completion_window) * 1000),
            metadata=asked.metadata or {},
            invalid_lines=asked.invalid_lines,
            models=None if caller.models is None else tuple(sorted(caller.models)),
            priority=self._desk.priority(caller, asked.priority),
            band=JOB_BANDS[asked.priority],
            weight=caller.weight,
        )

    async def list(self, request: Request, rest: str) -> Answer:
        caller = self._keys.identify(request.headers)
        limit = page_limit(request.query.get("limit"))
        after = request.query.get("after") or None
        found = await self._batches.page(caller.tenant, after=after, limit=limit + 1)
        if after is not None and not found:
            await self._get(after, caller, param="after")
        data = [batch_object(batch) for batch in found[:limit]]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return json_answer({"object": "list", "data": data, **ends, "has_more": len(found) > limit})

    async def one(self, request: Request, rest: str) -> Answer:
        """``<id>`` or ``<id>/cancel``."""
        caller = self._keys.identify(request.headers)
        id_, _, what = rest.partition("/")
        if what == "":
            only(request, "GET")
            return json_answer(batch_object(await self._get(id_, caller)))
        if what == "cancel":
            only(request, "POST")
            return await self._cancel(await self._get(id_, caller), caller)
        raise NotFound(f"there is nothing at /v1/batches/{rest}")

    async def _cancel(self, batch: Batch, caller: Caller) -> Answer:
        if not await self._batches.cancel(batch.spec.id):
            batch = await self._get(batch.spec.id, caller)
            raise BatchEnded(f"{batch.spec.id} is {batch.state.value} already")
        return json_answer(batch_object(await self._get(batch.spec.id, caller)))

    async def _get(self, id_: str, caller: Caller, *, param: str | None = None) -> Batch:
        batch = await self._batches.get(id_)
        if batch is None or batch.spec.tenant != caller.tenant:
            raise BatchNotFound(f"there is no batch {id_!r}", param=param)
        return batch


def _read(data: bytes) -> _Asked:
    try:
        return msgspec.json.decode(data, type=_Asked)
    except msgspec.ValidationError as error:
        _, _, place = str(error).partition(" - at `$.")
        raise InvalidRequest(str(error), param=place.strip("`.[").split(".")[0].split("[")[0] or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(data, error) from error


def _window_s(text: str) -> float:
    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise InvalidRequest(f"`completion_window`: {error}", param="completion_window") from error
    if not 1 <= seconds <= MAX_WINDOW_S:
        raise InvalidRequest("`completion_window` must be from 1s to 7d", param="completion_window")
    return seconds


def batch_object(batch: Batch) -> dict[str, Any]:
    spec = batch.spec
    times = batch.times
    ended = batch.state in BATCH_ENDED

    def at(state: str) -> int | None:
        return None if state not in times else times[state] // 1000

    errors = [{"code": e.code, "message": e.message, "line": e.line, "param": e.param} for e in batch.errors]
    tokens = batch.input_tokens + batch.output_tokens
    return {
        "id": spec.id,
        "object": "batch",
        "endpoint": spec.endpoint,
        "model": None,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": spec.input_file,
        "completion_window": spec.completion_window,
        "status": batch.state.value,
        "output_file_id": batch.output_file if ended else None,
        "error_file_id": batch.error_file if ended else None,
        "created_at": spec.created_ms // 1000,
        "expires_at": spec.expires_ms // 1000,
        **{f"{s}_at": at(s) for s in ("in_progress", "finalizing", "completed", "failed", "expired")},
        **{f"{s}_at": at(s) for s in ("cancelling", "cancelled")},
        "request_counts": {
            # One that was cancelled before it was validated has not been counted, and yet is written out.
            "total": max(batch.total, batch.completed + batch.failed),
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": {
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens,
        },
        "metadata": spec.metadata or None,
    }
