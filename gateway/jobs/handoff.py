"""A held request whose client's patience ends becomes a job: at its place in the queue, and without running twice.

The ticket is turned into the job in one step in Redis, and only while it waits: once it has been granted, an engine may
get it. A grant that arrives in that moment is given back first. The client's error then says where its job is, and that
there is nothing to try again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from fleet import Submitted
from gateway.calls import Call
from gateway.failures import FailedAnswers, digest_of
from gateway.jobs.desk import JobDesk
from gateway.jobs.order import Order
from gateway.parse import ENDPOINTS
from gateway.waiting import Held
from rewarm.config import HandOff
from rewarm.errors import (
    InvalidHeader,
    JobBodyTooLarge,
    LoadTimeout,
    ModelLoading,
    RewarmError,
    ShuttingDown,
)
from rewarm.messages import Grant

_log = logging.getLogger("rewarm.gateway.jobs.handoff")

HEADER = "X-Rewarm-Hand-Off"
FALLBACK = "X-Rewarm-Fallback"
_GIVE_UP_S = 1.5  # less than the two seconds by which patience is shorter than the client's timeout
_AGAIN_S = 0.1
_ONCE = {"x-should-retry": "false"}  # the job runs: a retry would be a second one

_dump = msgspec.json.Encoder().encode


def _fallback(call: Call) -> dict[str, str]:
    """A request that has gone on to a fallback goes no further as a job; else what it says itself."""
    if call.fallback:
        return {FALLBACK: "none"}
    asked = call.request.headers.get(FALLBACK)
    return {} if asked is None else {FALLBACK: asked}


class Places(Protocol):
    """What this needs of :class:`fleet.Queue`."""

    async def decline(self, ticket_id: str, grant: str) -> bool: ...


class _Loading(ModelLoading):
    def headers(self) -> dict[str, str]:
        return _ONCE


class _Stopping(ShuttingDown):
    def headers(self) -> dict[str, str]:
        return _ONCE


class HandedOff:
    """``policy`` is the configuration's; a request may ask with ``X-Rewarm-Hand-Off: job``, or refuse with ``none``."""

    def __init__(self, policy: HandOff, desk: JobDesk, places: Places, failed: FailedAnswers) -> None:
        self.policy = policy
        self._desk = desk
        self._places = places
        self._failed = failed

    def wanted(self, headers: Mapping[str, str]) -> bool:
        """Raise InvalidHeader."""
        asked = headers.get(HEADER)
        if asked is None:
            return self.policy == "always"
        word = asked.strip().lower()
        if word not in ("job", "none"):
            raise InvalidHeader(f"{HEADER}: {asked!r} is none of job, none", param=HEADER)
        return word == "job" and self.policy != "never"

    async def instead(self, held: Held, error: RewarmError) -> RewarmError:
        """What to tell a client that waits no longer: ``error``, with its job where there is one now."""
        if not held.queued or not self.wanted(held.call.request.headers):
            return error
        held.moving = True
        try:
            job = await self._adopt(held)
        except RewarmError as why:
            _log.info("request=%s stays no job: %s", held.call.id, why.message)
            error.extra["hand_off"] = {"code": why.code, "message": why.message}
            return error
        finally:
            held.moving = False
        if job is None:
            return error
        held.queued = False
        return self._told(held, error, job)

    async def _adopt(self, held: Held) -> Submitted | None:
        """None: the ticket is on its way to an engine, or gone."""
        call = held.call
        if len(call.body) > self._desk.config.max_body:
            raise JobBodyTooLarge(f"the body has {len(call.body)} bytes, too many for a job")
        order = Order(endpoint=ENDPOINTS[call.path], model=call.model, body=call.outgoing, stream=call.stream)
        spec = self._desk.handed_off(call.caller, call.entry, order, held.ticket, _fallback(call))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _GIVE_UP_S
        while True:
            job = await self._desk.jobs.adopt(held.ticket.id, held.ticket.gateway, spec, call.outgoing)
            if job is not None or loop.time() > deadline:
                return job
            await self._give_back(held)

    async def _give_back(self, held: Held) -> None:
        """The grant that came in between, if that is why."""
        if not held.events:
            try:
                async with asyncio.timeout(_AGAIN_S):
                    await held.wait()
            except TimeoutError:
                pass
        for event in held.events:
            if isinstance(event, Grant):
                await self._places.decline(event.ticket, event.grant)
        held.events = [event for event in held.events if not isinstance(event, Grant)]

    def _told(self, held: Held, error: RewarmError, job: Submitted) -> RewarmError:
        call = held.call
        url = f"/v1/jobs/{job.id}"
        urls = {name: f"{url}/{name}" for name in ("events", "result", "cancel")}
        told = {"id": job.id, "status_url": url, **{f"{name}_url": at for name, at in urls.items()}}
        message = f"{error.message}; it goes on as {job.id}"
        final: RewarmError = error
        extra = {**error.extra, "job": told}
        if isinstance(error, ModelLoading):
            final = _Loading(message, extra=extra)
        elif isinstance(error, ShuttingDown):
            final = _Stopping(message, extra=extra)
        elif isinstance(error, LoadTimeout):
            final = LoadTimeout(message, extra=extra)
        # Some clients try again whatever is said: the first one that does is told the same.
        digest = digest_of(call.caller.tenant, call.path, call.body)
        headers = {**final.headers(), "Content-Type": "application/json"}
        self._failed.remember(digest, final.status, headers, _dump(final.body()), final.code)
        _log.info("request=%s goes on as job=%s", call.id, job.id)
        return final
