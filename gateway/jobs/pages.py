"""``/v1/jobs``: hand in, look, read, follow, cancel, list. Only handing in wakes a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fleet import Submitted
from gateway.holding import Holding
from gateway.http import Answer, Request, Response
from gateway.intake import read_body
from gateway.jobs.cursor import read_cursor
from gateway.jobs.desk import JobDesk
from gateway.jobs.listing import read_listing
from gateway.jobs.order import ENVELOPE_BYTES, idempotency, preferred_wait_s, read_order
from gateway.jobs.results import as_json
from gateway.jobs.showing import failure_of
from gateway.jobs.stream import EventStream
from gateway.keys import ANYONE, Keyring
from gateway.operators import Operators
from gateway.reply import error_response
from rewarm.errors import (
    BodyTooLarge,
    EngineBadResponse,
    InvalidApiKey,
    JobBodyTooLarge,
    JobNotFinished,
    JobNotFound,
    MethodNotAllowed,
    NotFound,
    QueueUnavailable,
)
from rewarm.jobs import TERMINAL, Job, JobSpec, JobState
from rewarm.units import format_bytes

_dump = msgspec.json.Encoder().encode


class JobPages:
    """``submit`` and ``list`` are of ``/v1/jobs`` itself, ``one`` of everything below a job's own path."""

    def __init__(self, desk: JobDesk, keys: Keyring, operators: Operators, holding: Holding) -> None:
        self._desk = desk
        self._keys = keys
        self._operators = operators
        self._holding = holding
        self._below: dict[str, tuple[str, Callable[[Request, Job], Awaitable[Answer]]]] = {
            "": ("GET", self._show),
            "result": ("GET", self._result),
            "events": ("GET", self._events),
            "cancel": ("POST", self._cancel),
        }

    # --- handing in --------------------------------------------------------------------------------------------------

    async def submit(self, request: Request, rest: str) -> Answer:
        """202 with the job. With ``Prefer: wait=n`` 200 with job and result, if it ends in time."""
        caller = self._keys.identify(request.headers)
        caller.enter()
        try:
            data = await self._read(request)
            wait_s = preferred_wait_s(request.headers)
            key = idempotency(request.headers, data)
            order = read_order(data, self._desk.config.max_body)
            entry = self._desk.entry(caller, order.model)
            spec = self._desk.spec(caller, entry, order, headers=request.headers)
            caller.limits.admit(order.endpoint.path, order.body, self._desk.now_ms())
            submitted = await self._desk.submit(spec, order.body, idempotency=key)
            headers = {"Location": f"/v1/jobs/{submitted.id}"}
            job = await self._submitted(spec, submitted)
            if wait_s is not None:
                headers["Preference-Applied"] = f"wait={wait_s:.0f}"
                job = await self._desk.watch.ended(submitted.id, wait_s, job) or job
        finally:
            caller.leave()
        if job.state not in TERMINAL:
            return await self._job(job, 202, headers)
        if wait_s is None:
            return await self._job(job, 200, headers)
        return await self._job_and_result(job, headers)

    async def _read(self, request: Request) -> bytes:
        limit = self._desk.config.max_body
        size = min(request.content_length or limit, limit)
        self._holding.read(size)
        try:
            return await read_body(request, limit + ENVELOPE_BYTES)
        except BodyTooLarge as error:
            raise JobBodyTooLarge(f"the body of a job may have {format_bytes(limit)} at most") from error
        finally:
            self._holding.forget(size)

    async def _submitted(self, spec: JobSpec, submitted: Submitted) -> Job:
        """As Redis has it; a new one that Redis took and then fell silent about is told of all the same."""
        try:
            return await self._desk.get(submitted.id, spec.tenant)
        except QueueUnavailable:
            if not submitted.created:
                raise
            created_ms = self._desk.now_ms()
            return Job(spec=spec, state=JobState.QUEUED, created_ms=created_ms, position=submitted.position)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def list(self, request: Request, rest: str) -> Answer:
        tenant, all_tenants = self._reader(request)
        listing = read_listing(request.query)
        if listing.tenant is not None and not all_tenants and listing.tenant != tenant:
            raise JobNotFound(f"this key does not see the jobs of {listing.tenant!r}", param="tenant")
        jobs = await self._desk.jobs.list(
            listing.tenant or tenant,
            after=listing.after,
            limit=listing.limit + 1,
            states=listing.states,
            kinds=listing.kinds,
        )
        if listing.after is not None and not jobs:
            await self._known(listing.after, listing.tenant or tenant)
        more = len(jobs) > listing.limit
        data = [self._desk.showing.describe(job) for job in jobs[: listing.limit]]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        return _json({"object": "list", "data": data, **ends, "has_more": more})

    async def _known(self, after: str, tenant: str) -> None:
        """Raise JobNotFound: nothing follows a job that is not there, and that is not the end of the list."""
        try:
            await self._desk.get(after, tenant)
        except JobNotFound as error:
            raise JobNotFound(error.message, param="after") from error

    async def one(self, request: Request, rest: str) -> Answer:
        """``<id>``, ``<id>/result``, ``<id>/events`` or ``<id>/cancel``."""
        id_, _, what = rest.partition("/")
        page = self._below.get(what)
        if page is None:
            raise NotFound(f"there is nothing at /v1/jobs/{rest}")
        method, answer = page
        if request.method != method and (method, request.method) != ("GET", "HEAD"):
            wrong = MethodNotAllowed(f"{request.method} is not possible here; allowed: {method}")
            return error_response(wrong, None, {"Allow": method})
        tenant, all_tenants = self._reader(request)
        return await answer(request, await self._desk.get(id_, None if all_tenants else tenant))

    def _reader(self, request: Request) -> tuple[str, bool]:
        """Whose jobs are asked for, and whether those of all may be seen. Raise InvalidApiKey."""
        token = self._operators.has_token(request)
        try:
            caller = self._keys.identify(request.headers)
        except InvalidApiKey:
            if not token:
                raise
            return ANYONE, True
        return caller.tenant, token or caller.operator

    async def _show(self, request: Request, job: Job) -> Answer:
        """With ``Prefer: wait=n`` not before it has ended, or n seconds."""
        wait_s = preferred_wait_s(request.headers)
        if wait_s is None:
            return await self._job(job, 200, {})
        ended = await self._desk.watch.ended(job.spec.id, wait_s, job)
        return await self._job(ended or job, 200, {"Preference-Applied": f"wait={wait_s:.0f}"})

    async def _result(self, request: Request, job: Job) -> Answer:
        """The engine's own answer, or why there is none."""
        if job.state not in TERMINAL:
            described = self._desk.showing.describe(job)
            raise JobNotFinished(f"{job.spec.id} is {described['status']}", extra={"job": described})
        kept = await self._desk.jobs.result(job.spec.id)
        result = as_json(kept)
        failure = failure_of(job)
        headers = {"X-Rewarm-Job": job.spec.id, "X-Rewarm-Model": job.model or job.spec.model}
        if job.fallback:
            headers["X-Rewarm-Fallback"] = f"{job.spec.model}; reason={job.fallback}"
        engines_own = job.state is JobState.FAILED and result and job.http_status
        if failure is not None and not engines_own:
            return error_response(failure, None, headers)
        if kept is None:
            raise JobNotFound(f"the result of {job.spec.id} is kept no longer")
        if result is None:
            raise EngineBadResponse("the engine's answer is no JSON")
        headers |= {"Content-Type": "application/json", "Server": "rewarm", "Cache-Control": "no-store"}
        return Response(status=job.http_status or 200, headers=headers, body=result)

    async def _events(self, request: Request, job: Job) -> Answer:
        header = request.headers.get("Last-Event-ID")
        cursor = read_cursor(header or request.query.get("after"), job, bare=not header)
        return await EventStream(self._desk, job, cursor).run(request, job)

    # --- changing ----------------------------------------------------------------------------------------------------

    async def _cancel(self, request: Request, job: Job) -> Answer:
        """The job as it is then; an ended one stays as it is, so that cancelling twice is no error."""
        outcome = await self._desk.jobs.cancel(job.spec.id, job.spec.tenant)
        if outcome == "unknown":
            raise JobNotFound(f"there is no job {job.spec.id!r}")
        return await self._job(await self._desk.get(job.spec.id, job.spec.tenant), 200, {})

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _job(self, job: Job, status: int, headers: dict[str, str]) -> Answer:
        retry_s = self._desk.showing.retry_after_s(job)
        more = {} if retry_s is None else {"Retry-After": str(retry_s)}
        return _json(await self._desk.describe(job), status, {**headers, **more})

    async def _job_and_result(self, job: Job, headers: dict[str, str]) -> Answer:
        told = await self._desk.describe(job)
        try:
            result = as_json(await self._desk.jobs.result(job.spec.id))
            told["result"] = None if result is None else msgspec.Raw(result)
        except QueueUnavailable:
            pass  # it is done, and can be read later
        return _json(told, 200, headers)


def _json(data: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    always = {"Content-Type": "application/json", "Cache-Control": "no-store", "Server": "rewarm"}
    return Response(body=_dump(data), status=status, headers={**always, **(headers or {})})
