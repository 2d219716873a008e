"""The gateway put together: its parts, its loops, and the table of its paths."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from fleet import Bell, Commands, FleetClient, Hint, Lost, Queue, Receipts, Reconnected, Registry, Spending, Wakes
from gateway.background import Background
from gateway.breakers import Breakers
from gateway.calls import Calls
from gateway.dispatch import Dispatcher
from gateway.drain import Drain
from gateway.engines import Engines
from gateway.failures import FailedAnswers
from gateway.gauges import add_gauges
from gateway.holding import Holding
from gateway.http import Answer, Request, Response
from gateway.inference import Inference, Parts
from gateway.intake import read_body
from gateway.jobs import JobOffice
from gateway.keys import Keyring
from gateway.limits import Sharing
from gateway.metrics import Metrics
from gateway.models import get_model, list_models
from gateway.openai import OpenAIOffice
from gateway.operators import Operators
from gateway.origin import check_origin
from gateway.parse import ENDPOINTS
from gateway.receipts import ReceiptBook
from gateway.remotes import Remotes
from gateway.replicas import Replicas
from gateway.reply import error_response
from gateway.silence import Silence
from gateway.standby import Fallbacks
from gateway.view import View
from gateway.waiting import WaitingRoom
from gateway.wakes import WakeMetrics, WakePages, WakesOfJobs
from gateway.webhooks import Secret
from gateway.woken import Woken
from rewarm import __version__
from rewarm.config import Config, ConfigState
from rewarm.errors import MethodNotAllowed, NotFound, QueueUnavailable, RewarmError
from rewarm.ids import boot_id
from rewarm.messages import Grant, TicketFailed, to_json
from rewarm.tracing import Tracing
from rewarm.upstream import UpstreamPool

_log = logging.getLogger("rewarm.gateway.app")

_MAX_COMMAND_BYTES = 64 * 2**10
_dump = msgspec.json.Encoder().encode

Page = Callable[[Request, str], Awaitable[Answer]]
"""A handler of everything but inference; the text is what follows the path's prefix."""


class Gateway:
    """``async with Gateway(...) as gateway``: the loops run inside; :meth:`handle` answers requests.

    ``secret`` is the fleet's, for gates on TCP. ``operator_token`` opens the operator's endpoints to this machine.
    ``webhook_secrets`` sign what clients are told of their jobs, by name. ``environ`` has the keys of remote models.
    ``file`` tells how the configuration's file fares, for those who look.
    """

    def __init__(
        self,
        config: Config,
        client: FleetClient,
        *,
        secret: str | None = None,
        operator_token: str | None = None,
        webhook_secrets: Mapping[str, Secret] | None = None,
        tracing: Tracing | None = None,
        environ: Mapping[str, str] | None = None,
        file: Callable[[], ConfigState] = ConfigState,
    ) -> None:
        self.config = config
        self.id = boot_id("gateway")
        self._queue = Queue(client)
        self._bell = Bell(client, gateway=self.id)
        self.background = Background()
        self.calls = Calls()
        self.keys = Keyring(config.keys)
        self.view = View(Registry(client).snapshot, heartbeat_s=config.worker.heartbeat.total_seconds())
        self.sharing = Sharing(Spending(client), self.id, self.keys.limits, self.view.now_ms)
        self.pool = UpstreamPool()
        self.dispatcher = Dispatcher(self.view)
        self.holding = Holding(config.gateway.holding)
        self.room = WaitingRoom(self._queue, self.id, self.background)
        self.metrics = Metrics()
        wakes = Wakes(client)
        self.receipts = ReceiptBook(Receipts(client), wakes, self.calls)
        self.wakes = WakeMetrics(self.view, self.metrics)
        self.woken = Woken(self.view)
        self.view.on_change = self._view_changed
        self.drain = Drain(self.calls)
        silence = Silence(self.drain)
        engines = Engines(
            self.pool, self.dispatcher, self.view, self.woken, silence, secret.encode() if secret else None
        )
        self.breakers = Breakers(self.metrics)
        self.remotes = Remotes(self.holding, silence, self.drain, environ or {})
        self.fallbacks = Fallbacks(self.view, self.dispatcher, self.breakers, self.remotes, self.metrics)
        failed = FailedAnswers()
        self.jobs = JobOffice(
            config.jobs,
            client,
            self.view,
            self.drain,
            queue=self._queue,
            failed=failed,
            webhook_secrets=webhook_secrets or {},
            wakes=WakesOfJobs(self.view, wakes),
            chains=self.fallbacks,
        )
        self.inference = Inference(
            Parts(
                config.gateway,
                self.keys,
                self.view,
                self.calls,
                self.holding,
                Replicas(
                    self.view,
                    self.dispatcher,
                    engines,
                    self.holding,
                    self.room,
                    self.jobs.hand_off,
                    self.metrics,
                    self.drain,
                ),
                self.remotes,
                self.breakers,
                self.fallbacks,
                failed,
                self.receipts,
                self.metrics,
                self.drain,
                self.woken,
                tracing,
            )
        )
        self.openai = OpenAIOffice(
            config.files,
            client,
            self.jobs.desk,
            keys=self.keys,
            view=self.view,
            drain=self.drain,
            holding=self.holding,
            owner=self.id,
        )
        self.inference.background = self.openai.responses.create
        about = {"id": self.id, "version": __version__, "pid": os.getpid(), "listen": config.gateway.listen}
        self.operators = Operators(
            self.keys,
            self.view,
            self.calls,
            self.dispatcher,
            self.breakers,
            Commands(client),
            token=operator_token,
            about=about,
            file=file,
        )
        self._wake_pages = WakePages(self.view, self.keys, self.operators, wakes)
        jobs = self.jobs.pages(self.keys, self.operators, self.holding)
        self._exact: dict[tuple[str, str], Page] = {
            ("GET", "/health"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/v1/models"): self._models,
            ("GET", "/rewarm/v1/status"): self._status,
            ("GET", "/rewarm/v1/wakes"): self._wakes,
            ("POST", "/rewarm/v1/commands"): self._command,
            ("POST", "/v1/jobs"): jobs.submit,
            ("GET", "/v1/jobs"): jobs.list,
            **self.openai.exact(),
        }
        self._prefixed: dict[str, Page] = {"/v1/models/": self._model, "/v1/requests/": self._receipt}
        self._below: dict[str, Page] = {"/v1/jobs/": jobs.one, **self.openai.below()}  # these know their own methods
        self._stack = AsyncExitStack()
        add_gauges(
            self.metrics,
            self.view,
            self.calls,
            self.holding,
            self.dispatcher,
            self.receipts,
            self.jobs.watch,
            self.jobs.webhooks,
            file,
        )

    def _view_changed(self) -> None:
        self.wakes.look()
        self.woken.look()
        self.room.explain(self.view.fleet.explanations)

    def configure(self, config: Config) -> None:
        """What of a configuration applies to a gateway that runs (:data:`rewarm.config.AT_START` does not). The models
        come by way of the leader."""
        self.config = config
        self.keys.configure(config.keys)
        self.holding.config = config.gateway.holding
        self.inference.configure(config.gateway)
        self.jobs.configure(config.jobs)

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Gateway:
        await self._stack.enter_async_context(self.background)
        self._stack.push_async_callback(self.pool.close)
        self._stack.push_async_callback(self.remotes.close)
        self._stack.push_async_callback(self.jobs.close)
        try:
            # Both before the first request: an unknown gateway's tickets would be dropped, an unknown model refused.
            await self.room.beat()
        except QueueUnavailable as error:
            _log.warning("redis is out of reach at the start: %s", error.message)
        await self.view.refresh()
        await self.sharing.try_share()
        for name, run in (
            ("bell", self._listen),
            ("view", self.view.follow),
            ("heartbeat", self.room.vouch),
            ("positions", self.room.locate),
            ("pulse", self.calls.pulse),
            ("receipts", self.receipts.flush_often),
            ("tidy", self._tidy),
            ("limits", self.sharing.run),
            *self.jobs.loops(),
            *self.openai.loops(),
        ):
            self.background.loop(name, run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()
        await self._stack.__aexit__(kind, error, trace)

    async def _leave(self) -> None:
        """Last words to Redis, as far as it listens."""
        self.woken.close()
        await self.background.settle(5.0)
        try:
            async with asyncio.timeout(5.0):
                await self.receipts.flush()
                await self._queue.gateway_leave(self.id)
        except (QueueUnavailable, TimeoutError) as error:
            _log.info("left without a word to redis: %s", error)

    async def _listen(self) -> None:
        async for event in self._bell.listen():
            if isinstance(event, Grant | TicketFailed):
                self.room.deliver(event)
            elif isinstance(event, Hint):
                self.view.hint()
            elif isinstance(event, Lost):
                self.view.lost()
            elif isinstance(event, Reconnected):
                self.view.back(empty=event.empty)
                await self.room.beat()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(30)
            self.dispatcher.prune()

    # --- requests ----------------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Answer:
        """Answer one request. Typed errors become responses here, unless their call has told them already."""
        path = request.path
        try:
            if self.keys.open:
                check_origin(request)
            endpoint = ENDPOINTS.get(path)
            if endpoint is not None:
                if request.method != "POST":
                    return _wrong_method(request.method, "POST")
                return await self.inference(request, endpoint)
            return await self._page(request, path)
        except RewarmError as error:
            self.metrics.errors.add(error.code, "")
            response = error_response(error)
            if self.drain.begun or not request.complete:
                response.force_close()  # whoever sends on gets no second chance to be read
            return response

    async def _page(self, request: Request, path: str) -> Answer:
        method = "GET" if request.method == "HEAD" else request.method
        page = self._exact.get((method, path))
        if page is not None:
            return await page(request, "")
        for prefix, below in self._below.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                return await below(request, path[len(prefix) :])
        for prefix, of_prefix in self._prefixed.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                if method != "GET":
                    return _wrong_method(request.method, "GET")
                return await of_prefix(request, path[len(prefix) :])
        allowed = [m for m, p in self._exact if p == path]
        if allowed:
            return _wrong_method(request.method, ", ".join(allowed))
        raise NotFound(f"there is nothing at {path}")

    # --- pages -------------------------------------------------------------------------------------------------------

    async def _health(self, request: Request, rest: str) -> Answer:
        """The process lives. Says nothing about models: asleep is healthy."""
        return _json({"status": "ok"})

    async def _ready(self, request: Request, rest: str) -> Answer:
        """Send requests here? Without Redis still yes: ready models answer. Not while draining."""
        state = "draining" if self.drain.begun else "ready" if self.view.known else "starting"
        redis = "ok" if self.view.available else "unreachable"
        return _json({"status": state, "redis": redis}, 200 if state == "ready" else 503)

    async def _metrics(self, request: Request, rest: str) -> Answer:
        return Response(body=self.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _models(self, request: Request, rest: str) -> Answer:
        return _json(list_models(self.view, self.breakers, self.keys.identify(request.headers)))

    async def _model(self, request: Request, rest: str) -> Answer:
        return _json(get_model(self.view, self.breakers, self.keys.identify(request.headers), rest))

    async def _receipt(self, request: Request, rest: str) -> Answer:
        caller = self.keys.identify(request.headers)
        return _json(to_json(await self.receipts.get(rest, caller.tenant)))

    async def _status(self, request: Request, rest: str) -> Answer:
        self.operators.may_look(request)
        return _json(self.operators.status())

    async def _wakes(self, request: Request, rest: str) -> Answer:
        return _json(await self._wake_pages.list(request))

    async def _command(self, request: Request, rest: str) -> Answer:
        self.operators.may_command(request)
        body = await read_body(request, _MAX_COMMAND_BYTES)
        return _json(await self.operators.command(request, body), 202)


def _json(data: dict[str, Any], status: int = 200) -> Response:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", "Server": "rewarm"}
    return Response(body=_dump(data), status=status, headers=headers)


def _wrong_method(method: str, allowed: str) -> Response:
    error = MethodNotAllowed(f"{method} is not possible here; allowed: {allowed}")
    return error_response(error, None, {"Allow": allowed})
