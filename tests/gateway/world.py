"""A gateway for tests, in this process, with everything around it real but small.

Redis is real, the gateway is served on a real port; a :class:`Gate` is a real HTTP server on a unix socket that keeps
slots and grants as a replica's gate does, with an engine behind it that answers as the test says; :class:`World` plays
the leader (catalogue, statuses) and the worker (heartbeats, claims). Nothing sleeps for a guessed time: see
:func:`until`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDictProxy

from fleet import FleetClient, Leader, Publisher, Queue, Registry
from gateway import Gateway, make_server
from rewarm.config import Config, catalogue, parse
from rewarm.ids import boot_id, grant_id
from rewarm.messages import Failure, ModelStatus, Progress, ReplicaReport, WorkerBeat
from rewarm.states import FailureReason, ReplicaState

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

BEAT_TTL_MS = 60_000
"""A worker of these tests tells when something changes, not again and again: it is there, however slow the machine."""

CONFIG = """
gateway:
  listen: 127.0.0.1:0
  holding:
    stream_status_after: 300ms
    comment_every: 1s
    plain_status_after: 600ms
    pad_every: 300ms
models:
  m: {engine: command, cmd: "x ${PORT}", slots: 2, aliases: [alias], answer_stall: 30s}
  other: {engine: command, cmd: "x ${PORT}", slots: 1}
"""


async def until(condition: Callable[[], Any], what: str, within_s: float = 10.0) -> Any:
    """Wait until ``condition`` (plain or async) gives something true."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.01)


def sse(*events: dict[str, Any] | str) -> bytes:
    return b"".join(b"data: " + (e if isinstance(e, str) else json.dumps(e)).encode() + b"\n\n" for e in events)


def chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"id": "e1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


HELLO = (
    chunk(role="assistant", content=""),
    chunk(content="Hello"),
    chunk(content=" there"),
    chunk(finish="stop"),
    "[DONE]",
)


async def hello(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """What an engine does: "Hello there", streaming or not."""
    if not body.get("stream"):
        message = {"role": "assistant", "content": "Hello there"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return web.json_response(
            {"id": "e1", "object": "chat.completion", "model": "m", "created": 1, "choices": choices}
        )
    return await streamed(request, *(sse(event) for event in HELLO))


async def streamed(request: web.Request, *pieces: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    await response.write_eof()
    return response


class Gate:
    """One replica's door: two lines of ledger, and an engine that does what ``answer`` says."""

    def __init__(self, path: str, slots: int) -> None:
        self.endpoint = f"unix:{path}"
        self.path = path
        self.slots = slots
        self.answer: Answer = hello
        self.running = 0
        self.peak = 0
        self.served = 0
        self.aborted = 0
        self.waiting_band: int | None = None
        self.draining = False
        self.reserved: set[str] = set()
        self.requests: list[tuple[CIMultiDictProxy[str], bytes]] = []
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

    async def open(self) -> None:
        await self._runner.setup()
        await web.UnixSite(self._runner, self.path).start()

    async def close(self) -> None:
        await self._runner.cleanup()

    def free(self) -> int:
        return self.slots - self.running - len(self.reserved)

    def _refusal(self, request: web.Request) -> str | None:
        grant = request.headers.get("X-Rewarm-Grant")
        if grant is not None:
            if grant not in self.reserved:
                return "grant"
            self.reserved.discard(grant)
            return None
        if self.draining:
            return "draining"
        if self.waiting_band is not None and int(request.headers["X-Rewarm-Band"]) >= self.waiting_band:
            return "waiting"
        return "full" if self.free() <= 0 else None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        why = self._refusal(request)
        if why is not None:
            return web.json_response(
                {"error": {"code": "gate_busy"}}, status=503, headers={"X-Rewarm-Busy": why, "Connection": "close"}
            )
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            body = await request.read()
            self.requests.append((request.headers, body))
            response = await self.answer(request, json.loads(body))
            self.served += 1
            return response
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1


class World:
    def __init__(self, url: str, fleet: str, config: Config) -> None:
        self.url, self.fleet, self.config = url, fleet, config
        self.folder = tempfile.TemporaryDirectory(prefix="rw")
        self.worker = boot_id("worker")
        self.reports: dict[str, ReplicaReport] = {}
        self.gates: dict[str, Gate] = {}
        self.stack = contextlib.AsyncExitStack()
        self.claims = True
        self.gateways: list[Gateway] = []
        self.urls: list[str] = []
        self.last_headers: CIMultiDictProxy[str]

    async def __aenter__(self) -> World:
        self.client = await FleetClient.connect(self.url, self.fleet, check=False)
        self.stack.push_async_callback(self.client.close)
        self.registry, self.queue = Registry(self.client), Queue(self.client)
        self.leader = Leader(self.client, "leader")
        await self.leader.campaign()
        self.publisher = Publisher(self.client, self.leader)
        await self.publisher.catalogue(catalogue(self.config))
        self.http = await self.stack.enter_async_context(aiohttp.ClientSession())
        self._loops = asyncio.TaskGroup()
        await self._loops.__aenter__()
        self._tasks = [self._loops.create_task(self._agent()), self._loops.create_task(self._reap())]
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(BaseExceptionGroup):
            await self._loops.__aexit__(None, None, None)
        await self.stack.aclose()
        for gate in self.gates.values():
            await gate.close()
        self.folder.cleanup()

    # --- the gateway -----------------------------------------------------------------------------------------------

    async def gateway(self, **options: Any) -> Gateway:
        """Start a gateway on a port of its own; its address is the last of ``urls``."""
        client = await FleetClient.connect(self.url, self.fleet, check=False)
        self.stack.push_async_callback(client.close)
        gateway = await self.stack.enter_async_context(Gateway(self.config, client, **options))
        listener = socket.create_server(("127.0.0.1", 0))
        server = make_server(gateway.handle)
        await server.start(listener)
        self.stack.push_async_callback(server.close, 0.1)
        self.gateways.append(gateway)
        self.urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
        return gateway

    @property
    def base(self) -> str:
        return self.urls[0]

    # --- the leader ------------------------------------------------------------------------------------------------

    async def failed(self, model: str, message: str = "it does not fit", kept_s: float = 30) -> Failure:
        failure = Failure(reason=FailureReason.NEVER_FITS, message=message, phase=ReplicaState.STARTING)
        until_ms = await self.client.time_ms() + int(kept_s * 1000)
        await self.leader.campaign()
        await self.publisher.status(ModelStatus(model=model, failed_until_ms=until_ms, failure=failure, attempts=2))
        return failure

    # --- the worker ------------------------------------------------------------------------------------------------

    async def beat(self) -> None:
        beat = WorkerBeat(
            worker=self.worker,
            boot=self.worker,
            host="here",
            pid=1,
            replicas=tuple(self.reports.values()),
        )
        await self.registry.beat(beat, ttl_ms=BEAT_TTL_MS, ring=True)

    async def loading(self, model: str, **progress: Any) -> None:
        """The model's replica loads; ``progress`` as in :class:`Progress`."""
        told = Progress(model=model, replica=f"{model}-1", **progress)
        self.reports[model] = ReplicaReport(
            replica=f"{model}-1", model=model, spec_hash="x", state=told.phase, term=1, progress=told
        )
        await self.registry.load_progress(told)
        await self.beat()

    async def ready(self, model: str, slots: int = 2, name: str = "1", **fields: Any) -> Gate:
        """The model's replica is ready, and its agent claims tickets; ``fields`` as in :class:`ReplicaReport`."""
        path = f"{self.folder.name}/{model}-{name}.sock"
        gate = Gate(path, slots)
        await gate.open()
        replica = f"{model}-{name}"
        self.gates[replica] = gate
        self.reports[replica if name != "1" else model] = ReplicaReport(
            replica=replica,
            model=model,
            spec_hash="x",
            state=ReplicaState.READY,
            term=1,
            endpoint=gate.endpoint,
            slots=slots,
            **fields,
        )
        await self.beat()
        return gate

    async def known(self, model: str, state: str = "ready") -> None:
        """Every gateway has seen it."""
        await until(lambda: all(g.view.state(model) == state for g in self.gateways), f"{model} is seen as {state}")

    async def _agent(self) -> None:
        claim = 0
        beaten = 0.0
        while True:
            await asyncio.sleep(0.02)
            with contextlib.suppress(Exception):
                if time.monotonic() - beaten > 0.5:
                    beaten = time.monotonic()
                    await self.beat()
                for replica, gate in list(self.gates.items()):
                    free = gate.free()
                    if free <= 0 or not self.claims or gate.draining:
                        continue
                    model = replica.rpartition("-")[0]
                    waiting = (await self.queue.waiting([model]))[model].count
                    if not waiting:
                        continue  # reserved slots are closed to direct requests
                    offers = [grant_id() for _ in range(min(free, waiting))]
                    gate.reserved.update(offers)
                    claim += 1
                    granted: set[str] = set()
                    try:
                        claimed = await self.queue.claim(
                            model, self.worker, replica, gate.endpoint, offers, request_id=f"{self.worker}-{claim}"
                        )
                        granted = {grant.grant for grant in claimed.grants}
                    finally:
                        gate.reserved.difference_update(set(offers) - granted)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            with contextlib.suppress(Exception):
                await self.leader.campaign()
                await self.queue.reap()

    # --- clients ---------------------------------------------------------------------------------------------------

    async def post(self, body: Any, headers: dict[str, str] | None = None, path: str = "/v1/chat/completions") -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        # aiohttp's client warns of large bodies that are not a file.
        payload = io.BytesIO(data) if len(data) > 2**20 else data
        async with self.http.post(self.base + path, data=payload, headers=sent) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        async with self.http.get(self.base + path, headers=headers or {}) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def lines(self, body: dict[str, Any], headers: dict[str, str] | None = None) -> AsyncIterator[str]:
        """The lines of a streamed answer as they come."""
        url = self.base + "/v1/chat/completions"
        async with self.http.post(url, json={**body, "stream": True}, headers=headers or {}) as answer:
            self.last_headers = answer.headers
            if answer.status != 200:
                yield f"status {answer.status} {(await answer.read()).decode()}"
                return
            async for line in answer.content:
                yield line.decode()


class Reply:
    def __init__(self, status: int, headers: CIMultiDictProxy[str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["error"]["code"]
        return code

    @property
    def text(self) -> str:
        text: str = self.json["choices"][0]["message"]["content"]
        return text


def chat(model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **fields}


def config(text: str = CONFIG, **gateway: Any) -> Config:
    parsed = parse(text, Path("test.yaml"))
    if gateway:
        parsed = parsed.model_copy(update={"gateway": parsed.gateway.model_copy(update=gateway)})
    return parsed
