"""What is refused before anything is asked of an engine: each with a status, a code, and nothing woken."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import pytest
from aiohttp import web

from tests.gateway.world import CONFIG, World, chat, config, hello, until

pytestmark = pytest.mark.redis


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"", 400, "invalid_json", None),
        (b"{", 400, "invalid_json", None),
        (b'{"model": "m", "messages": [}', 400, "invalid_json", None),
        (b"[]", 400, "invalid_request", None),
        (b"null", 400, "invalid_request", None),
        (b"{}", 400, "invalid_request", "model"),
        (b'{"messages": []}', 400, "invalid_request", "model"),
        (b'{"model": 3, "messages": []}', 400, "invalid_request", "model"),
        (b'{"model": "", "messages": []}', 400, "invalid_request", "model"),
        (b'{"model": "m"}', 400, "invalid_request", "messages"),
        (b'{"model": "m", "messages": "hi"}', 400, "invalid_request", "messages"),
        (b'{"model": "m", "messages": [], "stream": "yes"}', 400, "invalid_request", "stream"),
        (b'{"model": "m", "messages": [], "stream_options": 1}', 400, "invalid_request", "stream_options"),
        (b'{"model": "nobody", "messages": []}', 404, "model_not_found", "model"),
        (b'\xff\xfe{"model": "m"}', 400, "invalid_json", None),
        (b'{"model": "m", "messages": ' + b"[" * 100_000, 400, "invalid_json", None),
    ],
)
@pytest.mark.asyncio
async def test_a_body_that_makes_no_sense(world: World, body: bytes, status: int, code: str, param: str | None) -> None:
    answer = await world.post(body)
    assert (answer.status, answer.code) == (status, code)
    assert answer.json["error"]["param"] == param
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert not (await world.registry.snapshot()).demand_ms, "nothing was woken"


@pytest.mark.asyncio
async def test_paths_and_methods(world: World) -> None:
    assert (await world.get("/nowhere")).code == "not_found"
    answer = await world.get("/v1/chat/completions")
    assert (answer.status, answer.code, answer.headers["Allow"]) == (405, "method_not_allowed", "POST")
    answer = await world.post({}, path="/v1/models")
    assert (answer.status, answer.code, answer.headers["Allow"]) == (405, "method_not_allowed", "GET")


@pytest.mark.parametrize(
    ("name", "value"), [("X-Rewarm-Max-Wait", "soon"), ("X-Rewarm-Max-Wait", "-1"), ("X-Rewarm-Progress", "loud")]
)
@pytest.mark.asyncio
async def test_our_own_headers_are_checked(world: World, name: str, value: str) -> None:
    answer = await world.post(chat(), {name: value})
    assert (answer.status, answer.code, answer.json["error"]["param"]) == (400, "invalid_header", name)


@pytest.mark.asyncio
async def test_a_body_over_the_limit_is_refused_before_it_is_read(make_world: Any) -> None:
    world: World = await make_world(config(CONFIG.replace("gateway:\n", "gateway:\n  max_body: 2KiB\n")))
    await world.gateway()
    big = json.dumps(chat(text="x" * 3000)).encode()
    answer = await world.post(big)
    assert (answer.status, answer.code) == (413, "body_too_large")
    reader, writer = await asyncio.open_connection(*world.base.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
    assert b"413" in await reader.readline()
    writer.close()


async def raw(world: World, *pieces: bytes) -> bytes:
    """Send bytes as they are, and return all that comes back until the gateway closes."""
    host, port = world.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431, "headers_too_large"),
        (b"nonsense\r\n\r\n", 400, "invalid_request"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "invalid_request",
        ),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n", 400, "invalid_request"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_not_http(world: World, head: bytes, status: int, code: str) -> None:
    answer = await raw(world, head)
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.split()[1] == b"%d" % status
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("wait_s", [0, 0.2])
@pytest.mark.asyncio
async def test_a_body_that_cannot_be_unpacked(world: World, caplog: Any, wait_s: float, chunked: bool) -> None:
    """Whether it comes along with the headers or after them: a 400, and the log is quiet."""
    host, port = world.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b"this is no gzip" * 4
    pieces = (body[:20], body[20:])
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
        b"Connection: close\r\n%s\r\n\r\n" % length
    )
    for piece in pieces:
        await asyncio.sleep(wait_s)
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
    if chunked:
        writer.write(b"0\r\n\r\n")
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, told = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"400"
    assert json.loads(told)["error"]["code"] == "invalid_request"
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR" or r.exc_info] == []


@pytest.mark.asyncio
async def test_expect_continue_is_answered(world: World) -> None:
    await world.ready("m")
    await world.known("m")
    body = json.dumps(chat()).encode()
    host, port = world.base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    await reader.readline()
    writer.write(body)
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    writer.close()


class TestKeys:
    KEYS = "keys:\n" + "".join(
        f"- {{name: {name}, sha256: {hashlib.sha256(f'sk-{name}'.encode()).hexdigest()}, {more}}}\n"
        for name, more in (
            ("alice", "concurrency: 1"),
            ("bob", "models: [other]"),
            ("root", "operator: true, priority: high"),
        )
    )

    @staticmethod
    def of(name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer sk-{name}"}

    @pytest.fixture
    def keyed(self) -> Any:
        return config(CONFIG + self.KEYS)

    @pytest.mark.asyncio
    async def test_a_key_is_needed_and_known(self, make_world: Any, keyed: Any) -> None:
        world: World = await make_world(keyed)
        await world.gateway()
        gate = await world.ready("m")
        await world.known("m")
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic sk-alice"}):
            answer = await world.post(chat(), headers)
            assert (answer.status, answer.code) == (401, "invalid_api_key")
        assert (await world.get("/v1/models")).code == "invalid_api_key"
        for headers in (self.of("alice"), {"X-Api-Key": "sk-alice"}, self.of("alice")):
            assert (await world.post(chat(), headers)).status == 200
        assert gate.requests[0][0]["X-Rewarm-Band"] == "1"
        assert (await world.post(chat(), self.of("root"))).status == 200
        assert gate.requests[-1][0]["X-Rewarm-Band"] == "0"

    @pytest.mark.asyncio
    async def test_a_key_sees_and_uses_only_its_models(self, make_world: Any, keyed: Any) -> None:
        world: World = await make_world(keyed)
        await world.gateway()
        await world.known("m", "cold")
        answer = await world.post(chat("m"), self.of("bob"))
        assert (answer.status, answer.code) == (403, "model_not_allowed")
        listed = (await world.get("/v1/models", self.of("bob"))).json["data"]
        assert [model["id"] for model in listed] == ["other"]
        assert (await world.get("/v1/models/m", self.of("bob"))).code == "model_not_found"

    @pytest.mark.asyncio
    async def test_a_key_has_so_many_requests_at_once(self, make_world: Any, keyed: Any) -> None:
        world: World = await make_world(keyed)
        await world.gateway()
        gate = await world.ready("m")
        hold = asyncio.Event()

        async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            await hold.wait()
            return await hello(request, body)

        gate.answer = slow
        await world.known("m")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(world.post(chat(), self.of("alice")))
            await until(lambda: gate.running == 1, "the first one runs")
            answer = await world.post(chat(), self.of("alice"))
            assert (answer.status, answer.code, answer.headers["Retry-After"]) == (429, "rate_limit_exceeded", "1")
            hold.set()
        assert first.result().status == 200
        assert (await world.post(chat(), self.of("alice"))).status == 200

    @pytest.mark.asyncio
    async def test_a_receipt_is_its_own_tenant_s(self, make_world: Any, keyed: Any) -> None:
        world: World = await make_world(keyed)
        await world.gateway()
        await world.ready("m")
        await world.known("m")
        answer = await world.post(chat(), self.of("alice"))
        path = "/v1/requests/" + answer.headers["X-Request-Id"]
        receipt = (await world.get(path, self.of("alice"))).json
        assert (receipt["state"], receipt["start"], receipt["served_model"]) == ("completed", "warm", "m")
        assert (await world.get(path, self.of("root"))).code == "request_not_found"

    @pytest.mark.asyncio
    async def test_only_an_operator_commands(self, make_world: Any, keyed: Any) -> None:
        world: World = await make_world(keyed)
        await world.gateway(operator_token="the-token")
        await world.known("m", "cold")
        command = {"kind": "wake", "target": "alias"}
        path = "/rewarm/v1/commands"
        assert (await world.post(command, path=path)).status == 401
        assert (await world.post(command, self.of("alice"), path=path)).status == 401
        assert (await world.post(command, self.of("root"), path=path)).status == 202
        assert (await world.post(command, {"X-Rewarm-Operator": "no"}, path=path)).status == 401
        assert (await world.post(command, {"X-Rewarm-Operator": "\xff"}, path=path)).status == 401
        answer = await world.post(command, {"X-Rewarm-Operator": "the-token"}, path=path)
        assert answer.json == {"accepted": True, "kind": "wake", "target": "m"}


class TestHoldingBounds:
    @pytest.mark.parametrize(
        ("bounds", "says"),
        [
            ("max_requests: 1", "as many as it may hold"),
            ("max_bytes_per_model: 100", "bytes"),
            ("max_bytes: 400", "bytes"),
        ],
    )
    @pytest.mark.asyncio
    async def test_more_than_the_gateway_may_hold_is_refused_early(
        self, make_world: Any, bounds: str, says: str
    ) -> None:
        world: World = await make_world(config(CONFIG.replace("  holding:\n", f"  holding:\n    {bounds}\n")))
        gateway = await world.gateway()
        await world.known("m", "cold")
        body = chat(padding="x" * 20)
        async with asyncio.TaskGroup() as group:
            held = group.create_task(world.post(body))
            await until(lambda: len(gateway.room) == 1, "one is held")
            answer = await world.post(chat(padding="y" * 350))
            assert (answer.status, answer.code, answer.headers["Retry-After"]) == (503, "queue_full", "5")
            assert says in answer.json["error"]["message"]
            await world.ready("m")
        assert held.result().status == 200
        assert (gateway.holding.count, gateway.holding.bytes) == (0, 0)

    @pytest.mark.asyncio
    async def test_the_fleet_s_own_bound(self, make_world: Any) -> None:
        world: World = await make_world(config(CONFIG.replace("answer_stall: 30s", "max_waiting: 1")))
        gateway = await world.gateway()
        other = await world.gateway()
        await world.known("m", "cold")
        async with asyncio.TaskGroup() as group:
            held = group.create_task(world.post(chat()))
            await until(lambda: len(gateway.room) == 1, "one is held")
            world.urls.reverse()
            answer = await world.post(chat(user="other"))
            assert (answer.status, answer.code) == (503, "queue_full")
            await until(lambda: not len(other.room), "nothing stays behind")
            await world.ready("m")
        assert held.result().status == 200


@pytest.mark.asyncio
async def test_pages_tell_and_never_wake(world: World) -> None:
    for path in ("/health", "/ready", "/metrics", "/v1/models", "/v1/models/alias", "/rewarm/v1/status"):
        assert (await world.get(path)).status == 200, path
    model = (await world.get("/v1/models/alias")).json
    assert (model["id"], model["root"], model["rewarm"]["state"]) == ("alias", "m", "cold")
    assert not (await world.registry.snapshot()).demand_ms
    await world.loading("m", fraction=0.5, eta_s=9.0)
    await world.known("m", "loading")
    state = (await world.get("/v1/models/m")).json["rewarm"]
    assert (state["state"], state["fraction"], state["eta_s"]) == ("loading", 0.5, 9.0)
    await world.ready("m")
    await world.known("m")
    await world.post(chat())
    text = (await world.get("/metrics")).body.decode()
    assert 'rewarm_requests_total{endpoint="/v1/chat/completions",model="m",start="warm",status="200"} 1.0' in text
    assert "rewarm_redis_up 1.0" in text
    status = (await world.get("/rewarm/v1/status")).json
    assert status["models"]["m"]["state"] == "ready"
    assert status["workers"][0]["replicas"][0]["state"] == "ready"
    assert status["redis"] == "ok"
