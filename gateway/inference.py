"""The inference endpoints: from a request to its answer, by the model that it asked for or by one behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable

from gateway.breakers import Breakers
from gateway.calls import Call, Calls
from gateway.drain import Drain
from gateway.failures import FailedAnswers, digest_of
from gateway.holding import Holding, progress_mode, timings
from gateway.http import Answer, Request, Response
from gateway.intake import read_body
from gateway.keys import Caller, Keyring
from gateway.metrics import Metrics
from gateway.parse import Endpoint, keep_alive_s, peek, wants_background
from gateway.receipts import ReceiptBook
from gateway.remotes import Remotes
from gateway.replicas import Replicas
from gateway.reply import Reply
from gateway.standby import Fallbacks, Late
from gateway.view import View
from gateway.woken import Woken
from rewarm.config import GatewayConfig
from rewarm.errors import EngineFailed, ModelNotFound, QueueUnavailable, RewarmError, ShuttingDown
from rewarm.ids import request_id
from rewarm.tracing import Tracing

_log = logging.getLogger("rewarm.gateway.inference")


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """What a request meets on its way, put together by :mod:`gateway.app`."""

    config: GatewayConfig
    keys: Keyring
    view: View
    calls: Calls
    holding: Holding
    replicas: Replicas
    remotes: Remotes
    breakers: Breakers
    fallbacks: Fallbacks
    failed: FailedAnswers
    receipts: ReceiptBook
    metrics: Metrics
    drain: Drain
    woken: Woken
    tracing: Tracing | None = None


InBackground = Callable[[Request, Caller, bytes], Awaitable[Answer]]
"""Takes a request that does not want to wait here: see :mod:`gateway.openai`."""


class Inference:
    def __init__(self, parts: Parts) -> None:
        self.background: InBackground | None = None
        self._parts = parts
        self._timings = timings(parts.config.holding)
        self._loop = asyncio.get_running_loop()

    def configure(self, config: GatewayConfig) -> None:
        """For requests that come from now on; those that wait keep what they were promised."""
        self._parts = dataclasses.replace(self._parts, config=config)
        self._timings = timings(config.holding)

    async def __call__(self, request: Request, endpoint: Endpoint) -> Answer:
        """Raise a RewarmError for what fails before there is a call: key, body, model, bounds, drain."""
        parts = self._parts
        caller = parts.keys.identify(request.headers)
        if parts.drain.begun:
            raise ShuttingDown("this gateway is stopping")
        caller.enter()
        size = request.content_length or 0
        try:
            parts.holding.read(size)
            try:
                body = await read_body(request, parts.config.max_body)
                if not size:  # sent in chunks: known only now
                    parts.holding.read(len(body))
                    size = len(body)
                background = self.background if endpoint.typed and wants_background(body, endpoint) else None
                if background is None:
                    return await self._answered(self._call(request, endpoint, caller, body))
            finally:
                parts.holding.forget(size)
        finally:
            caller.leave()
        return await background(request, caller, body)

    def _call(self, request: Request, endpoint: Endpoint, caller: Caller, body: bytes) -> Call:
        view = self._parts.view
        seen = peek(body, endpoint)
        entry = view.entry(seen.model)
        if entry is None:
            if not view.known:
                raise QueueUnavailable("this gateway has not been able to read the fleet's state yet")
            raise ModelNotFound(f"the model {seen.model!r} does not exist", param="model")
        caller.check(entry, seen.model)
        now_ms = view.now_ms()
        charge = caller.limits.admit(endpoint.path, body, now_ms)
        return Call(
            request,
            request_id(),
            caller,
            entry,
            model=seen.model,
            path=endpoint.path,
            body=body,
            stream=bool(seen.stream),
            chat=endpoint.chat,
            typed=endpoint.typed,
            keep_alive_s=keep_alive_s(seen.keep_alive),
            now=self._loop.time(),
            now_ms=now_ms,
            charge=charge,
        )

    async def _answered(self, call: Call) -> Answer:
        """The answer or its error; in any case counted, and with a receipt."""
        parts = self._parts
        mode = progress_mode(call.request.headers, call.caller, parts.config)
        reply = Reply(call, mode, self._timings, parts.failed, self._loop)
        parts.calls.add(call)
        if parts.tracing is not None:
            call.trace = parts.tracing.request(call.path, call.request.headers)
        try:
            response = await self._serve(call, reply)
            call.state = "failed" if call.error else "completed"
            return response
        except RewarmError as error:
            call.state = "failed"
            _log.info("request=%s model=%s error=%s: %s", call.id, call.entry.model, error.code, error.message)
            parts.metrics.errors.add(error.code, call.entry.model)
            return await reply.fail(error)
        except ConnectionError:
            call.state = "failed" if call.error else "aborted"
            if reply.response is None:
                raise
            return reply.response
        except asyncio.CancelledError:
            call.state = "aborted"
            raise
        except BaseException:
            call.state, call.error = "failed", RewarmError.code
            raise
        finally:
            parts.calls.remove(call)
            self._record(call)

    def _record(self, call: Call) -> None:
        parts, model = self._parts, call.entry.model
        now = self._loop.time()
        parts.metrics.requests.add(model, call.path, str(call.status or 499), call.start)
        parts.metrics.duration.observe(now - call.started_at, model)
        if call.first_byte_at is not None:
            parts.metrics.first_byte.observe(call.first_byte_at - call.started_at, model, call.start)
        if call.charge is not None:
            answered = call.first_byte_at is not None
            call.caller.limits.settle(call.charge, answered=answered, now_ms=parts.view.now_ms())
        ended_ns = time.time_ns()
        if parts.woken.ended(call, lambda: self._tell(call, now, ended_ns)):
            parts.receipts.add(call.receipt(now))  # until its wake is known
        else:
            self._tell(call, now, ended_ns)

    def _tell(self, call: Call, now: float, ended_ns: int) -> None:
        """``now`` and ``ended_ns``: when it ended, by the loop's clock and by the wall's."""
        parts = self._parts
        receipt = call.receipt(now)
        parts.receipts.add(receipt)
        if call.trace is not None:
            since_ms = (time.time_ns() - ended_ns) // 1_000_000
            age_ms = 0 if receipt.wake is None else parts.view.now_ms() - since_ms - receipt.wake.ready_at_ms
            call.trace.end(receipt, max(0, age_ms) / 1000, ended_ns=ended_ns)

    # --- serving -------------------------------------------------------------------------------------------------

    async def _serve(self, call: Call, reply: Reply) -> Answer:
        parts = self._parts
        if parts.failed:
            told = parts.failed.take(digest_of(call.caller.tenant, call.path, call.body))
            if told is not None:
                call.status, call.error = told.status, told.code
                headers = {"Content-Type": "application/json", **told.headers, "X-Request-Id": call.id}
                return Response(status=told.status, headers=headers, body=told.body)
        if call.entry.policy.fallback:
            call.standby = parts.fallbacks.of(call)
        standby = call.standby
        while True:
            try:
                return await self._answer(call, reply)
            except Late as late:
                if standby is None:
                    raise
                standby.go(late.step)
            except RewarmError as error:
                if standby is None or not standby.failed(error, answering=reply.answering):
                    raise
            await reply.switched()

    async def _answer(self, call: Call, reply: Reply) -> Answer:
        """By the model that ``call`` is at now. What becomes of it counts for that model's breaker."""
        parts, model = self._parts, call.entry.model
        breakers = parts.breakers
        breakers.admit(model)
        try:
            by = parts.remotes if call.entry.remote is not None else parts.replicas
            answer = await by.answer(call, reply)
        except RewarmError as error:
            breakers.ended(model, error.code, error)
            raise
        except BaseException:
            breakers.ended(model, call.error)  # an answer that broke off has cut its client's connection
            raise
        if call.engine_status >= 500:
            breakers.failed(model, EngineFailed.code)
        else:
            breakers.succeeded(model)
        return answer
