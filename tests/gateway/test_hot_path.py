"""A ready model with room: the request goes straight to its gate, and everything passes through untouched."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from aiohttp import web

from gateway.http.connection import Connection
from tests.gateway.world import HELLO, World, chat, chunk, hello, sse, streamed, until

pytestmark = pytest.mark.redis


@pytest.mark.asyncio
async def test_a_plain_answer_passes_with_its_status_and_body(world: World) -> None:
    gate = await world.ready("m")
    await world.known("m")
    answer = await world.post(chat())
    assert (answer.status, answer.text) == (200, "Hello there")
    assert answer.headers["X-Rewarm-Start"] == "warm"
    assert answer.headers["X-Rewarm-Model"] == "m"
    assert answer.headers["X-Request-Id"].startswith("req-")
    assert "engine;dur=" in answer.headers["Server-Timing"]
    assert gate.served == 1


@pytest.mark.asyncio
async def test_a_stream_passes_byte_for_byte(world: World) -> None:
    await world.ready("m")
    await world.known("m")
    answer = await world.post(chat(stream=True))
    assert answer.body == sse(*HELLO)
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert answer.headers["Cache-Control"] == "no-cache, no-transform"
    assert answer.headers["Content-Type"].startswith("text/event-stream")


@pytest.mark.asyncio
async def test_the_request_reaches_the_engine_untouched_but_for_what_is_not_its_business(world: World) -> None:
    gate = await world.ready("m")
    await world.known("m")
    body = b'{ "messages" :[ {"role":"user","content":"\\u00e9 \\ud83d\\ude00"}], "seed": 1e3,  "model":"alias" }'
    sent = {
        "Authorization": "Bearer secret",
        "Accept-Encoding": "gzip",
        "X-Rewarm-Progress": "none",
        "X-Trace": "t1",
        "X-Request-Id": "the-client's",
        "Cookie": "a=b",
        "Content-Type": "application/x-www-form-urlencoded",  # what `curl -d` says of every body
    }
    answer = await world.post(body, sent)
    assert answer.status == 200
    headers, received = gate.requests[0]
    assert received == body
    assert headers["X-Trace"] == "t1"
    assert headers.getall("Content-Type") == ["application/json"]
    assert headers["X-Request-Id"] == answer.headers["X-Request-Id"] != "the-client's"
    assert headers["X-Rewarm-Band"] == "1"
    for name in ("Authorization", "Accept-Encoding", "X-Rewarm-Progress", "Cookie", "X-Rewarm-Secret"):
        assert name not in headers


@pytest.mark.asyncio
async def test_the_engine_s_own_refusal_passes_through(world: World) -> None:
    gate = await world.ready("m")

    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too hot", "code": "bad_temperature"}}, status=400)

    gate.answer = refuse
    await world.known("m")
    for stream in (False, True):
        answer = await world.post(chat(stream=stream))
        assert (answer.status, answer.code) == (400, "bad_temperature")


@pytest.mark.asyncio
async def test_a_large_answer_and_a_large_request_pass_whole(world: World) -> None:
    gate = await world.ready("m")
    text = "x" * 5_000_000

    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"length": len(body["messages"][0]["content"]), "text": text})

    gate.answer = echo
    await world.known("m")
    answer = await world.post({"model": "m", "messages": [{"role": "user", "content": "y" * 8_000_000}]})
    assert answer.json == {"length": 8_000_000, "text": text}


@pytest.mark.asyncio
async def test_the_less_busy_replica_is_chosen(world: World) -> None:
    first, second = await world.ready("m", slots=2), await world.ready("m", slots=2, name="2")
    await until(lambda: len(world.gateways[0].view.ready("m")) == 2, "both are known")
    open_gate = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await open_gate.wait()
        return await hello(request, body)

    first.answer = second.answer = slow
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(world.post(chat()))
        await until(lambda: first.running + second.running == 4, "all run")
        assert (first.peak, second.peak) == (2, 2)
        open_gate.set()


@pytest.mark.asyncio
async def test_a_replica_that_does_not_answer_is_left_out_and_the_other_serves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.dispatch.EJECTED_S", 60.0)
    dead, alive = await world.ready("m", name="dead"), await world.ready("m", name="2")
    await until(lambda: len(world.gateways[0].view.ready("m")) == 2, "both are known")
    await dead.close()
    for _ in range(4):
        assert (await world.post(chat())).text == "Hello there"
    assert alive.served == 4
    assert world.gateways[0].dispatcher.ejections == 1


@pytest.mark.asyncio
async def test_a_gate_whose_engine_has_just_ended_is_left_out_and_the_other_serves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate says that its engine has seen nothing of the request, so it may go elsewhere."""
    monkeypatch.setattr("gateway.dispatch.EJECTED_S", 60.0)
    widow, other = await world.ready("m", name="dead"), await world.ready("m", name="2")

    async def unseen(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        error = {"message": "the engine has ended", "code": "worker_died"}
        return web.json_response({"error": error}, status=502, headers={"X-Rewarm-Unseen": "1"})

    widow.answer = unseen
    await until(lambda: len(world.gateways[0].view.ready("m")) == 2, "both are known")
    for _ in range(4):
        assert (await world.post(chat())).text == "Hello there"
    assert other.served == 4
    assert world.gateways[0].dispatcher.ejections == 1


@pytest.mark.asyncio
async def test_one_that_broke_off_an_answer_is_left_out_and_the_other_serves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients see an engine's end before its worker has told it to anybody."""
    monkeypatch.setattr("gateway.dispatch.EJECTED_S", 60.0)
    one, two = await world.ready("m", name="1"), await world.ready("m", name="2")

    async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        raise ConnectionResetError

    one.answer = two.answer = die
    await until(lambda: len(world.gateways[0].view.ready("m")) == 2, "both are known")
    assert (await world.post(chat())).code == "worker_died"
    one.answer = two.answer = hello
    served = [(await world.post(chat())).text for _ in range(4)]
    assert served == ["Hello there"] * 4
    assert sorted((len(one.requests), len(two.requests))) == [1, 4], "none meets the one that broke off"


@pytest.mark.asyncio
async def test_a_client_that_leaves_ends_its_generation(world: World) -> None:
    gate = await world.ready("m")

    async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(sse(chunk(content="again ")))
            await asyncio.sleep(0.01)

    gate.answer = endless
    await world.known("m")
    lines = world.lines(chat())
    async for line in lines:
        if "again" in line:
            break
    await lines.aclose()  # type: ignore[attr-defined]
    await until(lambda: gate.aborted == 1 and gate.running == 0, "the engine saw the client go")
    await until(lambda: not len(world.gateways[0].calls), "the gateway forgot the request")


@pytest.mark.asyncio
async def test_small_writes_to_a_client_are_not_collected(world: World) -> None:
    """TCP_NODELAY on the accepted socket: Nagle would hold a token back until the one before it is acknowledged."""
    gate = await world.ready("m")
    look = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await look.wait()
        return await hello(request, body)

    gate.answer = slow
    await world.known("m")
    async with asyncio.TaskGroup() as group:
        for stream in (False, True):
            group.create_task(world.post(chat(stream=stream)))
        await until(lambda: gate.running == 2, "both run")
        for call in world.gateways[0].calls:
            connection = call.request.connection
            assert isinstance(connection, Connection)
            assert connection.transport is not None
            accepted: socket.socket = connection.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        look.set()


@pytest.mark.asyncio
async def test_a_client_that_reads_slowly_slows_the_engine_and_fills_no_memory(world: World) -> None:
    gate = await world.ready("m")
    piece = sse(chunk(content="x" * 64_000))
    pieces = 2048  # 128 MiB
    sent = 0
    stuck = asyncio.Event()

    async def flood(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(pieces):
            write = asyncio.ensure_future(response.write(piece))
            done, _ = await asyncio.wait((write,), timeout=1.0)
            if not done:  # for a whole second nobody took anything
                stuck.set()
            await write
            sent += len(piece)
        await response.write(sse("[DONE]"))
        await response.write_eof()
        return response

    gate.answer = flood
    await world.known("m")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    client.setblocking(False)
    host, port = world.base.removeprefix("http://").split(":")
    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=client, limit=64 * 1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # a client that does something else
    try:
        writer.write(TestOnTheWire.request(stream=True, more=b"Connection: close\r\n"))
        await until(lambda: stuck.is_set() or sent == pieces * len(piece), "the engine is stopped, or has sent all")
        # What lies in the buffers: the kernel's (some MiB), a part of a MiB in the gateway and in the gate.
        assert sent < 16 * 2**20, f"{sent} bytes were taken from the engine for a client that reads nothing"
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = 0
        tail = b""
        async with asyncio.timeout(60):
            while data := await reader.read(2**20):
                received += len(data)
                tail = (tail + data)[-100:]
        assert received > sent == pieces * len(piece)
        assert b"data: [DONE]" in tail
    finally:
        writer.close()
    assert gate.served == 1


class TestAStreamThatGoesWrong:
    """After the first byte: a no-op chunk, an error event, [DONE], and a clean close."""

    @staticmethod
    async def events(world: World, **fields: Any) -> list[Any]:
        lines = [line.strip() async for line in world.lines(chat(**fields))]
        data = [line[6:] for line in lines if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        return [json.loads(text) for text in data[:-1]]

    @pytest.mark.asyncio
    async def test_the_engine_dies_between_two_events(self, world: World) -> None:
        gate = await world.ready("m")

        async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(sse(*HELLO[:2]))
            # And a part of the next event, which no client must see.
            await response.write(b'data: {"id": "e1", "choi')
            assert request.transport is not None
            request.transport.close()
            return response

        gate.answer = die
        await world.known("m")
        *before, no_op, error = await self.events(world)
        assert before == list(HELLO[:2])
        assert no_op["choices"][0]["delta"] == {"content": ""}
        assert list(error) == ["error"]
        assert error["error"]["code"] == "worker_died"

    @pytest.mark.asyncio
    async def test_the_stream_ends_without_done(self, world: World) -> None:
        gate = await world.ready("m")
        gate.answer = lambda request, body: streamed(request, sse(*HELLO[:3]))
        await world.known("m")
        *before, _, error = await self.events(world)
        assert before == list(HELLO[:3])
        assert error["error"]["code"] == "stream_truncated"

    @pytest.mark.asyncio
    async def test_the_engine_falls_silent(self, make_world: Any) -> None:
        from tests.gateway.world import CONFIG, config

        world = await make_world(config(CONFIG.replace("answer_stall: 30s", "answer_stall: 1s")))
        await world.gateway()
        gate = await world.ready("m")

        async def stall(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(sse(*HELLO[:2]))
            await asyncio.Event().wait()
            raise AssertionError

        gate.answer = stall
        await world.known("m")
        *_, error = await self.events(world)
        assert error["error"]["code"] == "engine_stalled"
        await until(lambda: gate.running == 0, "the slot is free again")

    @pytest.mark.asyncio
    async def test_before_the_first_event_it_is_a_true_status(self, world: World) -> None:
        gate = await world.ready("m")

        async def die(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            assert request.transport is not None
            request.transport.close()
            return response

        gate.answer = die
        await world.known("m")
        answer = await world.post(chat(stream=True))
        assert (answer.status, answer.code) == (502, "worker_died")


@pytest.mark.asyncio
async def test_a_slow_first_token_gets_comments_and_the_role_comes_once(world: World) -> None:
    """The engine says nothing for a while: the status line goes out, then comments, then its chunks less the role."""
    gate = await world.ready("m")

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await until(lambda: world.gateways[0].calls and began.is_set(), "the client has had a sign")
        return await hello(request, body)

    began = asyncio.Event()
    gate.answer = slow
    await world.known("m")
    lines = []
    async for line in world.lines(chat()):
        lines.append(line)
        began.set()
    assert lines[0] == ": running\n"
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    roles = [c for c in chunks if "role" in c["choices"][0]["delta"]]
    assert len(roles) == 1
    assert roles[0]["rewarm"]["start"] == "warm"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hello there"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.asyncio
async def test_an_engine_that_fails_after_a_sign_of_life_fails_all_the_same(world: World, stream: bool) -> None:
    """The client was told a 200 with a comment or padding; the breaker counts what the engine said."""
    gate = await world.ready("m", slots=5)

    async def slow_failure(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        calls = world.gateways[0].calls
        await until(lambda: all(call.status == 200 for call in calls), "every client has had a sign")
        return web.json_response({"error": {"message": "no", "code": "broken"}}, status=500)

    gate.answer = slow_failure
    await world.known("m")
    bodies = [chat(stream=stream, n=number) for number in range(5)]
    await asyncio.gather(*(world.post(body) for body in bodies), return_exceptions=True)  # a plain one is cut off
    refused = await world.post(chat())
    assert (refused.status, refused.code) == (503, "breaker_open")
    assert len(gate.requests) == 5


@pytest.mark.asyncio
async def test_other_endpoints_pass_too(world: World) -> None:
    gate = await world.ready("m")

    async def echo(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"path": request.path, "got": body})

    gate.answer = echo
    await world.known("m")
    for path, field in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        body = {"model": "m", field: ["a", "b"]}
        answer = await world.post(body, path=path)
        assert answer.json == {"path": path, "got": body}


class TestOnTheWire:
    """The plain answer's head is written by hand: what HTTP asks of it, seen from a raw socket."""

    @staticmethod
    async def talk(world: World, *requests: bytes) -> bytes:
        """Send all at once and read until the gateway closes."""
        host, port = world.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"".join(requests))
        try:
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()

    @staticmethod
    def request(version: bytes = b"1.1", more: bytes = b"", **fields: Any) -> bytes:
        body = json.dumps(chat(**fields)).encode()
        head = b"POST /v1/chat/completions HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n"
        return head % (version, len(body), more) + body

    @pytest.mark.asyncio
    async def test_pipelined_requests_are_answered_in_order_and_close_is_honoured(self, world: World) -> None:
        await world.ready("m")
        await world.known("m")
        answer = await self.talk(world, self.request(), self.request(), self.request(more=b"Connection: close\r\n"))
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
        assert answer.count(b"Connection: close\r\n") == 1
        assert answer.count(b"Date: ") == answer.count(b"Content-Length: ") == answer.count(b"Server: rewarm\r\n") == 3
        assert answer.count(b"Hello there") == 3

    @pytest.mark.asyncio
    async def test_http_1_0(self, world: World) -> None:
        await world.ready("m")
        await world.known("m")
        answer = await self.talk(world, self.request(b"1.0"))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Hello there" in answer
        assert b"chunked" not in answer

    @pytest.mark.asyncio
    async def test_an_answer_without_a_body(self, world: World) -> None:
        gate = await world.ready("m")

        async def nothing(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            return web.Response(status=204)

        gate.answer = nothing
        await world.known("m")
        answer = await self.talk(world, self.request(more=b"Connection: close\r\n"))
        assert answer.startswith(b"HTTP/1.1 204 No Content\r\n")
        assert b"Content-Length" not in answer
