"""The HTTP server on real sockets: framing, order, bounds, and what happens when either side stops."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http import BodyTooLong, Request, Response, StreamResponse
from gateway.http.connection import Connection
from gateway.http.limits import MAX_HEAD_BYTES, READ_BUFFER_BYTES
from tests.depth import examples
from tests.gateway.http.talk import client, get, mirror, post, serving

pytestmark = pytest.mark.asyncio


async def seen(answer: tuple[int, dict[str, str], bytes]) -> dict[str, Any]:
    assert answer[0] == 200, answer
    found: dict[str, Any] = json.loads(answer[2])
    return found


def told(*headers: bytes, body: bytes = b"") -> bytes:
    """A POST with these header lines."""
    return b"POST / HTTP/1.1\r\n" + b"\r\n".join((b"Host: x", *headers)) + b"\r\n\r\n" + body


class TestWhereAMessageEnds:
    """One parser decides, and what goes on to an engine has a length of our own: nothing can be hidden in between."""

    @pytest.mark.parametrize(
        ("name", "sent"),
        {
            "both lengths": told(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
            "both, the other way": told(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n"),
            "two lengths": told(b"Content-Length: 2", b"Content-Length: 3", body=b"abc"),
            "a list of lengths": told(b"Content-Length: 2, 2", body=b"ab"),
            "a signed length": told(b"Content-Length: +2", body=b"ab"),
            "a space before the colon": told(b"Content-Length : 2", body=b"ab"),
            "another coding": told(b"Transfer-Encoding: gzip"),
            "a coding before chunked": told(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
            "almost chunked": told(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
            "chunked, then identity": told(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
            "chunked in HTTP/1.0": told(b"Transfer-Encoding: chunked", body=b"0\r\n\r\n").replace(b"/1.1", b"/1.0"),
            "a folded header": told(b"A: b\r\n c"),
            "bare line feeds": b"GET / HTTP/1.1\nHost: x\n\n",
            "a bare carriage return": told(b"A: b\rC: d"),
            "a zero byte": told(b"A: b\0"),
            "no host": b"GET / HTTP/1.1\r\n\r\n",
            "two hosts": told(b"Host: y"),
            "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "HTTP/0.9": b"GET /\r\n\r\n",
            "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        }.items(),
    )
    async def test_what_is_ambiguous_is_refused(self, name: str, sent: bytes) -> None:
        async with serving() as (_, port), client(port) as talk:
            talk.send(sent, get(b"/smuggled"))
            status, headers, body = await talk.answer()
            assert (status, headers["connection"]) == (400, "close"), name
            assert json.loads(body)["error"]["code"] == "invalid_request"
            assert await talk.rest() == b"", "nothing behind it was taken for a request"

    @pytest.mark.parametrize(
        "chunk", [b"-2\r\nhi\r\n", b"fffffffffffffffff\r\nhi\r\n", b"2\nhi\n", b"2\r\nhiXX", b"zz\r\n"]
    )
    async def test_a_chunk_that_is_none_ends_the_connection(self, chunk: bytes) -> None:
        handled = asyncio.Event()

        async def reads(request: Request) -> Response:
            try:
                return await mirror(request)
            except ValueError:
                handled.set()
                raise

        async with serving(reads) as (_, port), client(port) as talk:
            talk.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", chunk, get(b"/smuggled"))
            assert (await talk.answer())[0] in (400, 500)
            assert await talk.rest() == b""

    async def test_a_trailer_changes_nothing(self) -> None:
        async with serving() as (_, port), client(port) as talk:
            talk.send(told(b"Transfer-Encoding: chunked", body=b"2;a=b\r\nhi\r\n0\r\nX-Admin: 1\r\n\r\n"))
            found = await seen(await talk.answer())
            assert found["body"] == "hi"
            assert "x-admin" not in found["headers"]

    @pytest.mark.parametrize("chunked", [False, True])
    async def test_another_protocol_is_offered_and_not_taken(self, chunked: bool) -> None:
        """Java's client offers HTTP/2 with its first request, body and all."""
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 5"
        body = b"5\r\nhello\r\n0\r\n\r\n" if chunked else b"hello"
        offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAM")
        head = told(*offer, framing).replace(b"POST /", b"POST /a")
        for pieces in ([head + body], [head, body[:3], body[3:]]):
            async with serving() as (_, port), client(port) as talk:
                for piece in pieces:
                    talk.send(piece)
                    await asyncio.sleep(0)
                found = await seen(await talk.answer())
                assert (found["path"], found["body"]) == ("/a", "hello")
                assert await talk.rest() == b"", "this connection is not used again"

    async def test_an_offer_without_a_body(self) -> None:
        async with serving() as (_, port), client(port) as talk:
            talk.send(get(b"/socket", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"))
            assert (await seen(await talk.answer()))["path"] == "/socket"
            assert await talk.rest() == b""


class TestOrder:
    async def test_pipelined_requests_are_answered_in_their_order(self) -> None:
        gates = [asyncio.Event() for _ in range(3)]
        begun: list[str] = []

        async def waits(request: Request) -> Response:
            begun.append(request.path)
            await gates[int(request.path[1:])].wait()
            return await mirror(request)

        async with serving(waits) as (_, port), client(port) as talk:
            talk.send(get(b"/0") + post(b"body", b"/1") + get(b"/2"))
            for gate in reversed(gates):
                gate.set()
            assert [(await seen(await talk.answer()))["path"] for _ in gates] == ["/0", "/1", "/2"]
            assert begun == ["/0", "/1", "/2"]

    async def test_requests_behind_one_that_waits_are_left_with_the_client(self) -> None:
        go_on = asyncio.Event()

        async def waits(request: Request) -> Response:
            await go_on.wait()
            return Response()

        async with serving(waits) as (_, port), client(port) as talk:
            talk.send(get(more=b"X: %b\r\n" % (b"y" * 4000)) * 8000)  # 32 MB
            before = -1
            while before != (left := talk.writer.transport.get_write_buffer_size()):  # until no more is taken
                before = left
                await asyncio.sleep(0.05)
            assert left > 16 * 2**20

    async def test_what_is_no_http_behind_a_request_does_not_cost_its_answer(self) -> None:
        async with serving() as (_, port), client(port) as talk:
            talk.send(get(b"/first") + b"nonsense\r\n\r\n")
            assert (await seen(await talk.answer()))["path"] == "/first"
            assert (await talk.answer())[0] == 400
            assert await talk.rest() == b""

    async def test_what_comes_after_connection_close_is_not_read(self) -> None:
        async with serving() as (_, port), client(port) as talk:
            talk.send(get(b"/last", b"Connection: close\r\n") + get(b"/after"))
            status, headers, _ = await talk.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert await talk.rest() == b""

    @settings(max_examples=examples(40))
    @given(cuts=st.lists(st.integers(0, 600), max_size=12))
    async def test_it_does_not_matter_where_the_network_cuts(self, cuts: list[int]) -> None:
        """The same bytes in any pieces are the same requests."""
        stream = (
            get(b"/a?b=c")
            + post(b"x" * 100, b"/b")
            + b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
            + get(b"/d", b"Connection: close\r\n")
        )
        edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
        async with serving() as (_, port), client(port) as talk:
            for start, end in itertools.pairwise(edges):
                talk.send(stream[start:end])
                await talk.writer.drain()
                await asyncio.sleep(0)
            found = [await seen(await talk.answer()) for _ in range(4)]
            assert [(f["path"], f["body"]) for f in found] == [
                ("/a", ""),
                ("/b", "x" * 100),
                ("/c", "abcdefg"),
                ("/d", ""),
            ]
            assert await talk.rest() == b""


class TestForms:
    @pytest.mark.parametrize(
        ("target", "path", "query"),
        [
            (b"/v1/models/a%2Fb?x=1&y=%20", "/v1/models/a/b", "x=1&y=%20"),
            (b"http://elsewhere/v1/models?x", "/v1/models", "x"),
            (b"http://elsewhere", "/", ""),
            (b"*", "*", ""),
        ],
    )
    async def test_targets(self, target: bytes, path: str, query: str) -> None:
        async with serving() as (_, port), client(port) as talk:
            talk.send(get(target))
            found = await seen(await talk.answer())
            assert (found["path"], found["query"]) == (path, query)

    async def test_head_gets_the_head_only(self) -> None:
        async with serving() as (_, port), client(port) as talk:
            talk.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await talk.reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length: " in head
            talk.send(get(b"/next", b"Connection: close\r\n"))
            assert (await talk.rest()).startswith(b"HTTP/1.1 200 OK")

    async def test_http_1_0_is_closed_unless_it_asks_otherwise(self) -> None:
        async with serving() as (_, port):
            async with client(port) as talk:
                talk.send(get(version=b"1.0"))
                await seen(await talk.answer())
                assert await talk.rest() == b""
            async with client(port) as talk:
                talk.send(get(version=b"1.0", more=b"Connection: keep-alive\r\n"))
                assert (await talk.answer())[1]["connection"] == "keep-alive"
                talk.send(get(b"/again", version=b"1.0"))
                assert (await seen(await talk.answer()))["path"] == "/again"

    @pytest.mark.parametrize(("version", "chunked"), [(b"1.1", True), (b"1.0", False)])
    async def test_a_stream_is_sent_in_chunks_or_until_the_end(self, version: bytes, chunked: bool) -> None:
        async def streams(request: Request) -> StreamResponse:
            response = StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for word in (b"one", b"", b"two"):
                await response.write(word)
            return response

        async with serving(streams) as (_, port), client(port) as talk:
            talk.send(get(version=version))
            status, headers, body = await talk.answer()
            assert (status, body, "transfer-encoding" in headers) == (200, b"onetwo", chunked)

    @pytest.mark.parametrize("status", [204, 304])
    async def test_statuses_without_a_body(self, status: int) -> None:
        async def nothing(request: Request) -> Response:
            return Response(status=status, body=b"never sent")

        async with serving(nothing) as (_, port), client(port) as talk:
            talk.send(get(), get(more=b"Connection: close\r\n"))
            head = await talk.reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length" not in head
            assert (await talk.rest()).startswith(b"HTTP/1.1 %d" % status)

    @pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\0"])
    async def test_a_header_of_ours_cannot_hold_a_line_break(self, end: str) -> None:
        async def splits(request: Request) -> Response:
            return Response(headers={"X": f"a{end}Set-Cookie: b"})

        async with serving(splits) as (_, port), client(port) as talk:
            talk.send(get())
            status, headers, _ = await talk.answer()
            assert (status, "set-cookie" in headers) == (500, False)


class TestBounds:
    @pytest.mark.parametrize(
        "head",
        [
            b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * 9000),
            b"GET / HTTP/1.1\r\nHost: x\r\nA: %b\r\n\r\n" % (b"a" * 9000),
            b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % (b"A: b\r\n" * 200),
            b"GET / HTTP/1.1\r\nHost: x\r\nA: %b" % (b"a" * (MAX_HEAD_BYTES + 1)),  # never ends
        ],
    )
    async def test_a_head_that_is_too_large(self, head: bytes) -> None:
        async with serving() as (_, port), client(port) as talk:
            talk.send(head)
            status, _, body = await talk.answer()
            assert (status, json.loads(body)["error"]["code"]) == (431, "headers_too_large")

    async def test_a_head_that_dribbles_in_too_slowly_is_cut_off(self) -> None:
        async with serving(keep_alive_s=0.05) as (server, port), client(port) as talk:
            talk.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
            assert await talk.rest() == b""
            assert not server.connections

    async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(self) -> None:
        done = asyncio.Event()

        async def waits(request: Request) -> Response:
            await done.wait()
            return Response()

        async with serving(waits, keep_alive_s=0.0) as (server, port), client(port) as busy, client(port) as idle:
            busy.send(get())
            assert await idle.rest() == b""
            assert len(server.connections) == 1
            done.set()
            assert (await busy.answer())[0] == 200

    async def test_a_body_nobody_reads_is_left_with_the_client(self) -> None:
        """A handler that refuses at once has cost no more than the buffer, and its answer arrives."""

        async def refuses(request: Request) -> Response:
            response = Response(status=413)
            response.force_close()
            return response

        async with serving(refuses) as (_, port), client(port) as talk:
            talk.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n", b"x" * 8_000_000)
            assert (await talk.answer())[0] == 413
            assert await talk.rest() == b""

    async def test_reading_stops_at_the_limit(self) -> None:
        over: list[int] = []

        async def reads(request: Request) -> Response:
            try:
                await request.read(1000)
            except BodyTooLong:
                over.append(1)
            response = Response(status=413)
            response.force_close()
            return response

        async with serving(reads) as (_, port):
            for framing in (b"Content-Length: 5000", b"Transfer-Encoding: chunked"):
                async with client(port) as talk:
                    chunk = b"" if framing.startswith(b"C") else b"1388\r\n"
                    talk.send(b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b" % (framing, chunk), b"x" * 5000)
                    assert (await talk.answer())[0] == 413
        assert len(over) == 2

    async def test_a_large_body_that_is_read_arrives_whole(self) -> None:
        async def length(request: Request) -> Response:
            await asyncio.sleep(0)  # the buffer fills first
            return Response(body=b"%d" % len(await request.read(1 << 24)))

        size = 5 * READ_BUFFER_BYTES + 3
        async with serving(length) as (_, port), client(port) as talk:
            talk.send(post(b"x" * size))
            assert (await talk.answer())[2] == b"%d" % size


async def standing_still(connection: Connection) -> None:
    """Until its client has taken what there is room for."""
    looks: list[int] = []
    async with asyncio.timeout(10):
        while not (connection.paused and len(set(looks)) == 1 and len(looks) == 5) and connection.transport is not None:
            await asyncio.sleep(0.005)
            looks = [*looks[-4:], connection.waiting_bytes()]


class TestEnds:
    async def test_a_client_that_goes_ends_its_handler(self) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def waits(request: Request) -> Response:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return Response()

        async with serving(waits) as (server, port):
            async with client(port) as talk:
                talk.send(get())
                await begun.wait()
            async with asyncio.timeout(5):
                await ended.wait()
            assert not server.connections

    async def test_a_client_that_reads_slowly_holds_the_writer_back(self) -> None:
        written = 0
        resumed = asyncio.Event()

        async def pours(request: Request) -> StreamResponse:
            nonlocal written
            response = StreamResponse(length=64 * 2**20)
            await response.prepare(request)
            for _ in range(64):
                await response.write(b"x" * 2**20)
                written += 1
            resumed.set()
            return response

        async with serving(pours) as (_, port), client(port) as talk:
            talk.send(get())
            await talk.reader.readuntil(b"\r\n\r\n")
            before = -1
            while before != written:  # until nothing more goes out
                before = written
                await asyncio.sleep(0.05)
            assert written < 32, "most of it waits with the handler"
            left = 64 * 2**20
            while left:
                left -= len(await talk.reader.read(2**20))
            await resumed.wait()

    async def test_a_client_that_stops_reading_is_cut_off_and_one_that_reads_slowly_is_not(self) -> None:
        ended = asyncio.Event()

        async def pours(request: Request) -> StreamResponse:
            response = StreamResponse()
            try:
                await response.prepare(request)
                while True:
                    await response.write(b"x" * 2**16)
            finally:
                ended.set()  # here an engine's slot would be given back

        async with serving(pours) as (server, port), client(port) as talk:
            talk.send(get())
            await talk.reader.readuntil(b"\r\n\r\n")
            (connection,) = server.connections
            now = asyncio.get_running_loop().time()

            def swept_after(seconds: float) -> None:
                nonlocal now
                now += seconds
                connection.sweep(now, keep_alive_s=75.0, write_stall_s=60.0)

            for _ in range(5):  # a megabyte in nearly a minute each time
                await standing_still(connection)
                swept_after(59.0)
                await talk.reader.readexactly(2**20)
                await standing_still(connection)
                swept_after(59.0)
                assert connection.transport is not None and not connection.transport.is_closing()
            async with asyncio.timeout(10):
                while not ended.is_set():
                    await standing_still(connection)
                    swept_after(61.0)
                    await asyncio.sleep(0)

    async def test_a_client_that_stops_reading_is_looked_for(self) -> None:
        """By the server itself, in its rounds."""

        async def pours(request: Request) -> Response:
            return Response(body=b"x" * 2**26)

        async with serving(pours, write_stall_s=0.0) as (server, port), client(port) as talk:
            talk.send(get())
            await talk.reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(20):
                while server.connections:  # noqa: ASYNC110  # the server says nothing when it sweeps
                    await asyncio.sleep(0.05)

    async def test_a_handler_s_bug_is_a_500_with_a_code_and_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        async def breaks(request: Request) -> Response:
            raise KeyError("secret detail")

        async with serving(breaks) as (_, port), client(port) as talk:
            with caplog.at_level(logging.ERROR):
                talk.send(get(b"/bug"))
                status, headers, body = await talk.answer()
            assert (status, headers["connection"]) == (500, "close")
            assert json.loads(body)["error"]["code"] == "internal_error"
            assert b"secret" not in body
            assert "path=/bug" in caplog.text

    async def test_a_bug_in_the_middle_of_an_answer_cuts_the_connection(self, caplog: pytest.LogCaptureFixture) -> None:
        async def breaks(request: Request) -> Response:
            response = StreamResponse()
            await response.prepare(request)
            await response.write(b"half")
            raise KeyError

        async with serving(breaks) as (_, port), client(port) as talk:
            talk.send(get())
            sent = b""
            with contextlib.suppress(ConnectionResetError):
                sent = await talk.rest()
            assert b"internal_error" not in sent
            assert not sent.endswith(b"0\r\n\r\n"), "it does not look whole"

    async def test_the_server_ends_after_the_answers_that_run(self) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def waits(request: Request) -> Response:
            begun.set()
            await go_on.wait()
            return Response(body=b"whole")

        async with serving(waits) as (server, port), client(port) as busy, client(port) as idle:
            busy.send(get())
            await begun.wait()
            closing = asyncio.create_task(server.close(10))
            assert await idle.rest() == b"", "idle ones end at once"
            go_on.set()
            status, headers, body = await busy.answer()
            assert (status, headers["connection"], body) == (200, "close", b"whole")
            await closing
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
