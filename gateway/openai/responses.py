"""``/v1/responses`` with ``background: true``: a job that answers at once, is polled, followed, cancelled, deleted.

Without it a response is an inference request like any other, and is not kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fleet import Submitted
from gateway.http import Answer, Request
from gateway.jobs import JobDesk, Order, idempotency
from gateway.keys import Caller, Keyring
from gateway.openai.answers import json_answer, only, page_limit, truth
from gateway.openai.following import Following
from gateway.openai.responses_object import response_object
from gateway.parse import ENDPOINTS, peek
from rewarm.errors import InvalidRequest, JobBodyTooLarge, NotFound, ResponseActive, ResponseNotFound
from rewarm.ids import job_id
from rewarm.jobs import TERMINAL, Job, JobState
from rewarm.units import format_bytes

PATH = "/v1/responses"
CANCEL_WITHIN_S = 5.0
"""A cancelled response that runs ends within a second or two; until then its answer is held back."""

_endpoint = ENDPOINTS[PATH]
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Responses:
    def __init__(self, desk: JobDesk, keys: Keyring) -> None:
        self._desk = desk
        self._keys = keys

    # --- making one --------------------------------------------------------------------------------------------------

    async def create(self, request: Request, caller: Caller, data: bytes) -> Answer:
        """``data`` is a body with ``background: true``. With ``stream: true`` the events follow at once."""
        seen = peek(data, _endpoint)
        body, asked = _engine_body(data)
        limit = self._desk.config.max_body
        if len(body) > limit:
            raise JobBodyTooLarge(
                f"the body has {len(data)} bytes, and in the background {format_bytes(limit)} are kept"
            )
        entry = self._desk.entry(caller, seen.model)
        order = Order(endpoint=_endpoint, model=seen.model, body=body, stream=True, metadata=_metadata(asked))
        spec = self._desk.spec(
            caller, entry, order, id_="resp_" + job_id().partition("_")[2], kind="response", headers=request.headers
        )
        caller.limits.admit(_endpoint.path, body, self._desk.now_ms())
        submitted = await self._desk.submit(spec, body, idempotency=idempotency(request.headers, data))
        job = await self._submitted(spec.tenant, submitted)
        if seen.stream:
            return await self._follow(request, job, asked, starting_after=-1)
        return json_answer(await self._shown(job, asked))

    async def _submitted(self, tenant: str, submitted: Submitted) -> Job:
        job = await self._desk.jobs.get(submitted.id)
        if job is None or job.spec.tenant != tenant or job.spec.kind != "response":
            raise ResponseNotFound(f"there is no response {submitted.id!r}")
        return job

    # --- an existing one ---------------------------------------------------------------------------------------------

    async def one(self, request: Request, rest: str) -> Answer:
        """``<id>``, ``<id>/cancel`` or ``<id>/input_items``."""
        id_, _, what = rest.partition("/")
        caller = self._keys.identify(request.headers)
        if what == "":
            only(request, "GET", "DELETE")
            job = await self._get(id_, caller)
            return await (self._delete(job) if request.method == "DELETE" else self._retrieve(request, job))
        if what == "cancel":
            only(request, "POST")
            return await self._cancel(await self._get(id_, caller))
        if what == "input_items":
            only(request, "GET")
            return await self._input_items(request, await self._get(id_, caller))
        raise NotFound(f"there is nothing at {PATH}/{rest}")

    async def _get(self, id_: str, caller: Caller) -> Job:
        return await self._submitted(caller.tenant, Submitted(id_, False, None))

    async def _retrieve(self, request: Request, job: Job) -> Answer:
        query = request.query
        streams = truth(query.get("stream"), "stream")
        after = query.get("starting_after")
        if after is not None and not (after.isascii() and after.isdigit()):
            raise InvalidRequest("`starting_after` must be a sequence number", param="starting_after")
        if not streams:
            if after is not None:
                raise InvalidRequest("`starting_after` goes with `stream=true`", param="starting_after")
            return json_answer(await self._shown(job, await self._asked(job)))
        return await self._follow(request, job, await self._asked(job), -1 if after is None else int(after[:15]))

    async def _follow(self, request: Request, job: Job, asked: dict[str, Any], starting_after: int) -> Answer:
        async def shown(now: Job) -> dict[str, Any]:
            return await self._shown(now, asked)

        first = response_object(job, request=asked) | {"output": [], "usage": None, "error": None, "completed_at": None}
        return await Following(self._desk, job, first, shown, starting_after).run(request, job)

    async def _cancel(self, job: Job) -> Answer:
        """The response as it is then; an ended one stays as it is, so that cancelling twice is no error."""
        asked = await self._asked(job)
        if job.state not in TERMINAL:
            await self._desk.jobs.cancel(job.spec.id, job.spec.tenant)
            job = await self._desk.watch.ended(job.spec.id, CANCEL_WITHIN_S) or job
        return json_answer(await self._shown(job, asked))

    async def _delete(self, job: Job) -> Answer:
        """Cancelled first, where it has not ended."""
        id_, tenant = job.spec.id, job.spec.tenant
        outcome = await self._desk.jobs.delete(id_, tenant)
        if outcome == "active":
            await self._desk.jobs.cancel(id_, tenant)
            await self._desk.watch.ended(id_, CANCEL_WITHIN_S)
            outcome = await self._desk.jobs.delete(id_, tenant)
        if outcome == "active":
            raise ResponseActive(f"{id_} is being cancelled")
        if outcome == "unknown":
            raise ResponseNotFound(f"there is no response {id_!r}")
        return json_answer({"id": id_, "object": "response", "deleted": True})

    async def _input_items(self, request: Request, job: Job) -> Answer:
        """While the request is there: it goes with the end of the response."""
        asked = await self._asked(job)
        given = asked.get("input")
        if given is None:
            raise ResponseNotFound(f"the input of {job.spec.id} is kept no longer than it runs", param="response_id")
        if isinstance(given, str):
            given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
        items = [{"id": f"item_{n}", **item} for n, item in enumerate(given) if isinstance(item, dict)]
        items = items[: page_limit(request.query.get("limit"))]
        ends = (items[0]["id"], items[-1]["id"]) if items else (None, None)
        more = len(items) < len(given)
        return json_answer({"object": "list", "data": items, "first_id": ends[0], "last_id": ends[1], "has_more": more})

    # -----------------------------------------------------------------------------------------------------------------

    async def _asked(self, job: Job) -> dict[str, Any]:
        body = None if job.state in TERMINAL else await self._desk.jobs.body(job.spec.id)
        return msgspec.json.decode(body, type=dict[str, Any]) if body else {}

    async def _shown(self, job: Job, asked: dict[str, Any]) -> dict[str, Any]:
        result = await self._desk.jobs.result(job.spec.id) if job.state is JobState.COMPLETED else None
        return response_object(job, request=asked, result=result, described=self._desk.showing.describe(job))


def _engine_body(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """What the engine is sent: always as a stream, so that the events can be followed; and the same as a dictionary.

    Raise InvalidRequest for what cannot work.
    """
    fields = _fields(data)
    asked: dict[str, Any] = msgspec.json.decode(data)
    if asked.get("store") is False:
        raise InvalidRequest("`background` needs `store`: a response that is not kept cannot be polled", param="store")
    if asked.get("previous_response_id") is not None or asked.get("conversation") is not None:
        name = "previous_response_id" if asked.get("previous_response_id") is not None else "conversation"
        raise InvalidRequest(f"`{name}`: engines keep no conversations; send the whole of it as `input`", param=name)
    fields.pop("background", None)
    fields["stream"] = msgspec.Raw(b"true")
    return msgspec.json.encode(fields), asked


def _metadata(asked: dict[str, Any]) -> dict[str, str]:
    given = asked.get("metadata")
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > 16:
        raise InvalidRequest("`metadata` must be an object of at most 16 texts", param="metadata")
    for name, value in given.items():
        if len(name) > 64 or not isinstance(value, str) or len(value) > 512:
            raise InvalidRequest("`metadata`: names of at most 64, values of at most 512 characters", param="metadata")
    return given
