"""The gate over real HTTP, in both of its homes: before a `command` engine, and as ASGI middleware under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from rewarm.upstream import UpstreamPool, UpstreamResponse
from tests.worker.conftest import until
from worker.gate import Gate, GateMiddleware, open_gate_sockets
from worker.gate.control import GateControl, GateUnreachable
from worker.gate.proxy import GateProxy, serve_gate
from worker.report import GateState

pytestmark = pytest.mark.timeout(60)
TOKEN, SECRET = "control-token", "fleet-secret"


class Engine:
    """An ASGI application that answers when it is let go, and remembers what it was sent."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = 0
        self.seen: list[dict[str, Any]] = []
        self.disconnected = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.seen.append({"path": scope["path"], "headers": dict(scope["headers"]), "body": body})
        if b"explode" in body:
            raise RuntimeError("told to explode")
        self.running += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-engine", b"yes")]})
            await send({"type": "http.response.body", "body": b"data: one\n\n", "more_body": True})
            gone = asyncio.create_task(self._gone(receive))
            waiting = asyncio.create_task(self.go.wait())
            await asyncio.wait((gone, waiting), return_when=asyncio.FIRST_COMPLETED)
            for task in (gone, waiting):
                task.cancel()
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
        finally:
            self.running -= 1

    async def _gone(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnected.set()


class Door:
    def __init__(self, engine: Engine, gate: Gate, path: Path, tcp: str, pool: UpstreamPool) -> None:
        self.engine, self.gate, self.pool, self.tcp, self.path = engine, gate, pool, tcp, path
        self.unix = f"unix:{path}"
        self.control = GateControl(pool, path, TOKEN)

    async def send(
        self,
        body: bytes = b"{}",
        *,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        at: str = "",
        **headers: str,
    ) -> UpstreamResponse:
        lines = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
        return await self.pool.request(at or self.unix, method, path, lines, body)

    async def refusal(self, **more: Any) -> tuple[int, str | None, str]:
        response = await self.send(**more)
        headers = {k.lower(): v.decode() for k, v in response.headers}
        error = json.loads(await response.read(10_000))["error"]
        return response.status, headers.get(b"x-rewarm-busy"), error["code"]


@asynccontextmanager
async def uvicorn_serving(app: Any, sockets: list[socket.socket]) -> AsyncIterator[None]:
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve(sockets=sockets))
    await until(lambda: server.started, "uvicorn serves")
    try:
        yield
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def door(kind: str, folder: Path, *, slots: int = 2, opened: bool = True, **proxy: Any) -> AsyncIterator[Door]:
    engine = Engine()
    states: list[GateState] = []
    gate = Gate(slots, token=TOKEN, secret=SECRET, on_change=states.append)
    pool = UpstreamPool()
    sockets, tcp = open_gate_sockets(str(folder / "g.sock"), "127.0.0.1")
    if opened:
        gate.open()
    out = Door(engine, gate, folder / "g.sock", tcp, pool)
    async with contextlib.AsyncExitStack() as stack:
        if kind == "asgi":
            await stack.enter_async_context(uvicorn_serving(GateMiddleware(engine, gate), sockets))
        else:
            inner, _ = open_gate_sockets(str(folder / "e.sock"), None)
            await stack.enter_async_context(uvicorn_serving(engine, inner))
            behind = GateProxy(gate, pool, f"unix:{folder / 'e.sock'}", proxy.get("upstream_model"))
            await stack.enter_async_context(serve_gate(behind, sockets))
        try:
            yield out
        finally:
            engine.go.set()
            await pool.close()


both = pytest.mark.parametrize("kind", ["asgi", "proxy"])


@both
@pytest.mark.asyncio
async def test_a_request_passes_and_the_engine_s_answer_is_untouched(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path) as d:
        d.engine.go.set()
        response = await d.send(b'{"model": "m"}', X_Request_Id="req-1", Authorization="Bearer key", X_Rewarm_Band="0")
        assert (response.status, dict(response.headers).get(b"x-engine")) == (200, b"yes")
        assert await response.read(1000) == b"data: one\n\ndata: [DONE]\n\n"
        seen = d.engine.seen[0]
        assert seen["body"] == b'{"model": "m"}'
        assert seen["headers"][b"x-request-id"] == b"req-1"
        assert not [name for name in seen["headers"] if name.startswith(b"x-rewarm") or name == b"authorization"]
        await until(lambda: d.gate.state.quiet, "the slot is free")
        assert (d.gate.state.served, d.gate.state.peak) == (1, 1)


@both
@pytest.mark.asyncio
async def test_full_is_refused_before_the_body_is_read(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path, slots=1) as d:
        first = await d.send(X_Rewarm_Band="1")
        reader, writer = await asyncio.open_unix_connection(str(d.path))
        # A body of 10 MB is announced, and none of it sent: the answer comes all the same.
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Rewarm-Band: 0\r\n")
        writer.write(b"Content-Length: 10000000\r\n\r\n")
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).lower()
        assert head.startswith(b"http/1.1 503")
        assert b"x-rewarm-busy: full" in head
        writer.close()
        d.engine.go.set()
        await first.read(1000)
        assert len(d.engine.seen) == 1


@both
@pytest.mark.asyncio
async def test_a_large_body_that_is_refused_leaves_the_connection_usable(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path, slots=1) as d:
        first = await d.send()
        assert await d.refusal(body=b"x" * 3_000_000) == (503, "full", "gate_busy")
        d.engine.go.set()
        await first.read(1000)

        async def served() -> bool:
            response = await d.send()
            await response.read(1000)
            return response.status == 200

        await until(served, "served")


@both
@pytest.mark.asyncio
async def test_a_grant_holds_its_slot_against_direct_requests_and_works_once(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path) as d:
        grants, state = await d.control.reserve(5)
        assert (len(grants), state.reserved) == (2, 2)
        assert await d.refusal(X_Rewarm_Band="0") == (503, "full", "gate_busy")
        d.engine.go.set()
        response = await d.send(X_Rewarm_Grant=grants[0])
        assert response.status == 200
        await response.read(1000)
        assert await d.refusal(X_Rewarm_Grant=grants[0]) == (503, "grant", "gate_busy")
        assert (await d.control.release([grants[1]])).reserved == 0


@both
@pytest.mark.asyncio
async def test_an_unredeemed_grant_frees_its_slot_by_itself(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path) as d:
        await d.control.reserve(2)
        await until(lambda: d.gate.state.reserved == 0, "expired", 6)


@both
@pytest.mark.asyncio
async def test_a_waiting_band_and_draining_are_told_apart(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path) as d:
        d.engine.go.set()
        await d.control.set_waiting_band(1)
        assert await d.refusal(X_Rewarm_Band="1") == (503, "waiting", "gate_busy")
        assert await d.refusal() == (503, "waiting", "gate_busy")
        response = await d.send(X_Rewarm_Band="0")
        assert response.status == 200
        await response.read(1000)
        await d.control.drain()
        assert await d.refusal(X_Rewarm_Band="0") == (503, "draining", "gate_busy")
        await d.control.undrain()
        await d.control.set_waiting_band(None)
        response = await d.send()
        assert response.status == 200
        await response.read(1000)


@both
@pytest.mark.asyncio
async def test_a_client_that_leaves_frees_the_slot_and_the_engine_sees_it(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path, slots=1) as d:
        response = await d.send()
        assert d.gate.state.running == 1
        response.abort()
        await asyncio.wait_for(d.engine.disconnected.wait(), 5)
        await until(lambda: d.gate.state.quiet, "the slot is free", 5)


@both
@pytest.mark.asyncio
async def test_an_engine_that_raises_frees_the_slot(kind: str, tmp_path: Path, caplog: Any) -> None:
    async with door(kind, tmp_path, slots=1) as d:
        response = await d.send(b'{"explode": 1}')
        assert response.status == 500
        await response.read(10_000)
        await until(lambda: d.gate.state.quiet, "the slot is free")


@both
@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/metrics", "/sleep", "/v1/load_lora_adapter", "/v1/models", "/health", "/"])
async def test_nothing_but_inference_is_reachable(kind: str, path: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path) as d:
        assert await d.refusal(path=path) == (404, None, "not_found")
        assert await d.refusal(path="/v1/chat/completions", method="GET") == (404, None, "not_found")
        assert d.engine.seen == []


@both
@pytest.mark.asyncio
async def test_over_tcp_only_the_secret_opens_and_control_does_not_exist(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path) as d:
        d.engine.go.set()
        for wrong in ({}, {"X_Rewarm_Secret": "wrong"}, {"X_Rewarm_Control": TOKEN}):
            assert await d.refusal(at=d.tcp, **wrong) == (401, None, "gate_unauthorized")
        response = await d.send(at=d.tcp, X_Rewarm_Secret=SECRET)
        assert response.status == 200
        await response.read(1000)
        more: dict[str, Any] = {"X_Rewarm_Secret": SECRET, "X_Rewarm_Control": TOKEN}
        refused = await d.refusal(at=d.tcp, path="/.rewarm/state", **more)
        assert refused == (404, None, "not_found")


@both
@pytest.mark.asyncio
async def test_control_needs_the_token_and_sense(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path) as d:
        assert await d.refusal(path="/.rewarm/reserve", body=b'{"slots": 1}') == (404, None, "not_found")
        for body in (b"[]", b"nonsense", b'{"slots": true}', b'{"slots": 0}'):
            status, _, _ = await d.refusal(path="/.rewarm/reserve", body=body, X_Rewarm_Control=TOKEN)
            assert status == 400
        wrong = GateControl(d.pool, d.path, "wrong")
        with pytest.raises(GateUnreachable):
            await wrong.state()


@both
@pytest.mark.asyncio
async def test_it_is_closed_until_ready_but_the_host_s_own_warm_up_passes(kind: str, tmp_path: Path) -> None:
    async with door(kind, tmp_path, opened=False) as d:
        d.engine.go.set()
        assert await d.refusal() == (503, "draining", "gate_busy")
        if kind == "asgi":  # the command's host asks its engine directly
            response = await d.send(X_Rewarm_Control=TOKEN)
            assert response.status == 200
            await response.read(1000)
            assert d.gate.state.served == 0
        d.gate.open()
        response = await d.send()
        assert response.status == 200
        await response.read(1000)


@pytest.mark.asyncio
async def test_the_proxy_names_the_model_as_the_engine_knows_it(tmp_path: Path) -> None:
    async with door("proxy", tmp_path, upstream_model="other") as d:
        d.engine.go.set()
        response = await d.send(b'{"x": {"model": "m"}, "model" : "m", "n": 1.0e5}')
        await response.read(1000)
        assert d.engine.seen[0]["body"] == b'{"x": {"model": "m"}, "model" : "other", "n": 1.0e5}'


@pytest.mark.asyncio
async def test_an_engine_that_is_gone_is_a_typed_502(tmp_path: Path) -> None:
    gate = Gate(1, token=TOKEN)
    gate.open()
    pool = UpstreamPool()
    sockets, endpoint = open_gate_sockets(str(tmp_path / "g.sock"), None)
    proxy = GateProxy(gate, pool, f"unix:{tmp_path / 'nobody.sock'}", None)
    async with serve_gate(proxy, sockets):
        response = await pool.request(endpoint, "POST", "/v1/completions", [], b"{}")
        assert response.status == 502
        assert json.loads(await response.read(1000))["error"]["code"] == "worker_died", "it had been ready"
        assert (b"X-Rewarm-Unseen", b"1") in [(k.title(), v) for k, v in response.headers], "and saw nothing of it"
        assert gate.state.quiet
    await pool.close()


@pytest.mark.asyncio
async def test_an_engine_that_dies_of_a_request_has_seen_it(tmp_path: Path) -> None:
    """On a connection that was kept too: said to be unseen, the request would go on to kill the next engine."""

    async def die_of_the_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.readuntil(b"{}")
        (tmp_path / "e.sock").unlink()
        writer.close()

    engine = await asyncio.start_unix_server(die_of_the_second, tmp_path / "e.sock")
    gate = Gate(1, token=TOKEN)
    gate.open()
    pool = UpstreamPool()
    sockets, endpoint = open_gate_sockets(str(tmp_path / "g.sock"), None)
    async with engine, serve_gate(GateProxy(gate, pool, f"unix:{tmp_path / 'e.sock'}", None), sockets):
        first = await pool.request(endpoint, "POST", "/v1/completions", [], b"{}")
        assert await first.read(10) == b"ok"
        second = await pool.request(endpoint, "POST", "/v1/completions", [], b"{}")
        assert (second.status, json.loads(await second.read(1000))["error"]["code"]) == (502, "worker_died")
        assert b"x-rewarm-unseen" not in [name.lower() for name, _ in second.headers]
        await pool.close()


SPLICES: list[tuple[bytes, bytes]] = [
    (b'{"model":"a","x":{"model":"b"}}', b'{"model":"N","x":{"model":"b"}}'),
    (b'{"m\\u006fdel" : 5 , "a":[{"model":1}]}', b'{"m\\u006fdel" : "N" , "a":[{"model":1}]}'),
    (b'{"model":"x","model":"y"}', b'{"model":"N","model":"N"}'),
    (b'{"a":"model","b":"\\"model\\":1"}', b'{"a":"model","b":"\\"model\\":1"}'),
    (b' {"model":"\\"}"}\n', b' {"model":"N"}\n'),
    (b'{"model":{"id":"x"}}', b'{"model":"N"}'),
    (b'["model"]', b'["model"]'),
    (b'{"model":"x"', b'{"model":"x"'),
    (b"", b""),
]


@pytest.mark.parametrize(("body", "spliced"), SPLICES)
def test_splice_changes_the_top_level_model_only(body: bytes, spliced: bytes) -> None:
    from rewarm.splice import splice_model

    assert splice_model(body, "N") == spliced


def test_splice_jumps_over_large_strings() -> None:
    from rewarm.splice import splice_model

    image = b"A" * 20_000_000
    body = b'{"messages":[{"content":"' + image + b'"}],"model":"m"}'
    assert splice_model(body, "N").endswith(b'"model":"N"}')
