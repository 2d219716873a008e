"""The HTTP client to engines, against real little servers that speak raw bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from rewarm.upstream import UpstreamDied, UpstreamPool, UpstreamProtocolError, UpstreamResponse, UpstreamUnreachable

Script = Callable[["Peer"], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """The server's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request; EOFError when the client has closed."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return head, await self.reader.readexactly(length)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Close with RST, as a killed process with unread data does."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


class Server:
    """Runs one script per connection, in order; the last one serves all further connections."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.connections = 0
        self.gone = asyncio.Event()  # set each time a client's connection ends
        self._open: set[asyncio.StreamWriter] = set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        self._open.add(writer)
        try:
            await script(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone.set()
            writer.close()
            self._open.discard(writer)

    @asynccontextmanager
    async def on(self, where: str | Path) -> AsyncIterator[str]:
        if isinstance(where, Path):
            server = await asyncio.start_unix_server(self.handle, where)
            endpoint = f"unix:{where}"
        else:
            server = await asyncio.start_server(self.handle, where, 0)
            endpoint = "tcp:{}:{}".format(*server.sockets[0].getsockname()[:2])
        try:
            yield endpoint
        finally:
            server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await server.wait_closed()


def answers(*responses: bytes) -> Script:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            for response in responses:
                await peer.send(response)

    return script


def once(response: bytes, *, close: bool = True) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(response)
        if not close:
            await peer.reader.read()

    return script


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool(connect_timeout_s=1.0)
    yield pool
    await pool.close()


async def post(pool: UpstreamPool, endpoint: str, body: bytes = b"{}") -> UpstreamResponse:
    return await pool.request(endpoint, "POST", "/v1/x", [(b"Content-Type", b"application/json")], body)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.asyncio
async def test_a_request_and_its_answer(stack: AsyncExitStack, pool: UpstreamPool, tmp_path: Path, kind: str) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.send(b"HTTP/1.1 201 Made\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 5\r\n\r\nhello")

    server = Server(script)
    endpoint = await stack.enter_async_context(server.on(tmp_path / "s" if kind == "unix" else "127.0.0.1"))
    response = await post(pool, endpoint, b'{"a": 1}')
    assert (response.status, response.reason) == (201, b"Made")
    assert [v for k, v in response.headers if k == b"X-A"] == [b"1", b"2"]
    assert await response.read(100) == b"hello"
    assert response.complete
    head, body = seen[0]
    assert body == b'{"a": 1}'
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\nHost: ")
    assert b"Content-Length: 8\r\n" in head


@pytest.mark.asyncio
async def test_a_connection_is_kept_and_used_again(stack: AsyncExitStack, pool: UpstreamPool) -> None:
    server = Server(answers(OK))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    for _ in range(5):
        assert await (await post(pool, endpoint)).read(10) == b"ok"
    assert server.connections == 1


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra",
        OK + b"rubbish",
    ],
)
@pytest.mark.asyncio
async def test_a_connection_that_may_not_be_used_again_is_not(
    stack: AsyncExitStack, pool: UpstreamPool, response: bytes
) -> None:
    server = Server(once(response, close=False))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    for _ in range(2):
        assert await (await post(pool, endpoint)).read(10) == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.asyncio
async def test_a_kept_connection_that_dies_as_it_is_reused_is_replaced_once(
    stack: AsyncExitStack, pool: UpstreamPool, reset: bool
) -> None:
    async def one_then_gone(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()  # the second request arrives, and the connection dies
        if reset:
            peer.reset()

    server = Server(one_then_gone, answers(OK))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    for _ in range(3):
        assert await (await post(pool, endpoint)).read(10) == b"ok"
    assert server.connections == 2


@pytest.mark.asyncio
async def test_a_new_connection_that_dies_is_not_tried_again(stack: AsyncExitStack, pool: UpstreamPool) -> None:
    async def read_and_go(peer: Peer) -> None:
        await peer.request()

    server = Server(read_and_go)
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    with pytest.raises(UpstreamDied):
        await post(pool, endpoint)
    assert server.connections == 1


@pytest.mark.asyncio
async def test_an_engine_that_dies_a_while_after_it_was_asked_is_not_asked_again(stack: AsyncExitStack) -> None:
    """The connection was kept and gave no byte, but it held for longer than one does that was closed before."""

    async def dies_of_the_second(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()

    pool = UpstreamPool(stale_within_s=0.0)  # any time at all is a while
    stack.push_async_callback(pool.close)
    server = Server(dies_of_the_second, answers(OK))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    await (await post(pool, endpoint)).read(10)
    with pytest.raises(UpstreamDied, match="before it answered"):
        await post(pool, endpoint)
    assert server.connections == 1


@pytest.mark.asyncio
async def test_an_engine_that_dies_of_a_request_is_dead_and_not_out_of_reach(
    stack: AsyncExitStack, pool: UpstreamPool, tmp_path: Path
) -> None:
    """At once or not: where nobody listens any more, the request may be what it died of, and must go nowhere else."""

    async def die(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        (tmp_path / "s").unlink()

    endpoint = await stack.enter_async_context(Server(die).on(tmp_path / "s"))
    await (await post(pool, endpoint)).read(10)
    with pytest.raises(UpstreamDied, match="no new one"):
        await post(pool, endpoint)


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.asyncio
async def test_a_local_engine_that_ends_before_it_has_read_the_request_has_not_seen_it(
    pool: UpstreamPool, tmp_path: Path, accepted: bool
) -> None:
    """A killed one: another may be tried, the request is not what it died of."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.setblocking(False)
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        response = await pool.open(f"unix:{tmp_path / 's'}", "POST", "/v1/x", [], b"{}")
        if accepted:
            peer, _ = await loop.sock_accept(listening)
            with peer:
                peer.setblocking(False)
                assert (await loop.sock_recv(peer, 10)).startswith(b"POST")  # and not the rest
    with pytest.raises(UpstreamUnreachable, match="before it had read"):
        await response.ready()


@pytest.mark.asyncio
async def test_a_reset_on_the_network_does_not_say_what_was_read(stack: AsyncExitStack, pool: UpstreamPool) -> None:
    async def read_and_reset(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    endpoint = await stack.enter_async_context(Server(read_and_reset).on("127.0.0.1"))
    with pytest.raises(UpstreamDied, match="before it answered"):
        await post(pool, endpoint)


@pytest.mark.asyncio
async def test_a_large_request_that_was_cut_off_is_not_asked_elsewhere(pool: UpstreamPool, tmp_path: Path) -> None:
    """What cut it off may have been an answer, which we no longer read."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.setblocking(False)
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        response = await pool.open(f"unix:{tmp_path / 's'}", "POST", "/v1/x", [], bytes(2**20))
        peer, _ = await loop.sock_accept(listening)
        with peer:
            peer.setblocking(False)
            await loop.sock_recv(peer, 10)
    with pytest.raises(UpstreamDied, match="before it answered"):
        await response.ready()


@pytest.mark.asyncio
async def test_a_kept_connection_whose_peer_did_not_read_is_replaced_however_late(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    pool = UpstreamPool(stale_within_s=0.0)
    stack.push_async_callback(pool.close)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.setblocking(False)
        listening.bind(str(tmp_path / "s"))
        listening.listen()

        async def ask() -> UpstreamResponse:
            return await pool.open(f"unix:{tmp_path / 's'}", "POST", "/v1/x", [], b"{}")

        async def accept() -> socket.socket:
            peer, _ = await loop.sock_accept(listening)
            peer.setblocking(False)
            return peer

        async def answer(peer: socket.socket) -> None:
            assert (await loop.sock_recv(peer, 1000)).endswith(b"{}")
            await loop.sock_sendall(peer, OK)

        first = await ask()
        with await accept() as peer:
            await answer(peer)
            assert await first.read(10) == b"ok"
            second = await ask()
            assert await loop.sock_recv(peer, 4) == b"POST"

        async def other() -> None:
            with await accept() as peer:
                await answer(peer)

        async with asyncio.TaskGroup() as group:  # where it fails, nobody comes to the other
            group.create_task(other())
            assert await second.ready()
        assert await second.read(10) == b"ok"


@pytest.mark.asyncio
async def test_an_idle_connection_that_the_server_closes_is_forgotten(
    stack: AsyncExitStack, pool: UpstreamPool
) -> None:
    server = Server(once(OK), answers(OK))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    await (await post(pool, endpoint)).read(10)
    await server.gone.wait()
    assert await (await post(pool, endpoint)).read(10) == b"ok"
    assert server.connections == 2


@pytest.mark.asyncio
async def test_nobody_listens(pool: UpstreamPool, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for endpoint in (f"tcp:127.0.0.1:{port}", f"unix:{tmp_path}/nothing"):
            with pytest.raises(UpstreamUnreachable):
                await post(pool, endpoint)
    with pytest.raises(ValueError):
        await post(pool, "http://127.0.0.1")


@pytest.mark.parametrize(
    ("head", "pieces"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", [b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n"]),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            [b"5\r\nab", b"cde", b"\r\n0\r\nTrailer: x\r\n\r\n"],
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", [b"abc", b"de"]),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            [b"abcde"],
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n", [b"abc", b"de"]),  # the end of the connection is the end of the body
        (b"HTTP/1.0 200 OK\r\n\r\n", [b"abcde"]),
    ],
)
@pytest.mark.asyncio
async def test_every_way_to_delimit_a_body(
    stack: AsyncExitStack, pool: UpstreamPool, head: bytes, pieces: list[bytes]
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        for piece in (head, *pieces):
            await peer.send(piece)
            await asyncio.sleep(0)

    endpoint = await stack.enter_async_context(Server(script).on("127.0.0.1"))
    response = await post(pool, endpoint)
    assert response.status == 200
    assert [k for k, _ in response.headers if k == b"Link"] == []
    assert await response.read(100) == b"abcde"
    assert response.complete


@pytest.mark.parametrize(
    ("method", "response"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\n\r\n"),
    ],
)
@pytest.mark.asyncio
async def test_answers_without_a_body(stack: AsyncExitStack, pool: UpstreamPool, method: str, response: bytes) -> None:
    server = Server(answers(response))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    for _ in range(2):
        got = await pool.request(endpoint, method, "/", [], b"")
        assert await got.read(10) == b""
    assert server.connections == 1


class TestDeath:
    @pytest.mark.parametrize(
        "part",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n9\r\nabc",
        ],
    )
    @pytest.mark.asyncio
    async def test_within_the_body(self, stack: AsyncExitStack, pool: UpstreamPool, part: bytes) -> None:
        endpoint = await stack.enter_async_context(Server(once(part)).on("127.0.0.1"))
        response = await post(pool, endpoint)
        assert response.status == 200
        with pytest.raises(UpstreamDied):
            await response.read(10**6)
        assert not response.complete

    @pytest.mark.asyncio
    async def test_a_reset_is_not_the_end_of_a_body_without_length(
        self, stack: AsyncExitStack, pool: UpstreamPool
    ) -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\n\r\nabc")
            await go.wait()
            peer.reset()

        go = asyncio.Event()
        endpoint = await stack.enter_async_context(Server(script).on("127.0.0.1"))
        response = await post(pool, endpoint)
        assert await response.next() == b"abc"
        go.set()
        with pytest.raises(UpstreamDied):
            await response.next()

    @pytest.mark.asyncio
    async def test_within_the_head(self, stack: AsyncExitStack, pool: UpstreamPool) -> None:
        endpoint = await stack.enter_async_context(Server(once(b"HTTP/1.1 200 OK\r\nX-")).on("127.0.0.1"))
        with pytest.raises(UpstreamDied):
            await post(pool, endpoint)


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
    ],
)
@pytest.mark.asyncio
async def test_what_is_not_http_is_an_error_and_the_connection_ends(
    stack: AsyncExitStack, pool: UpstreamPool, response: bytes
) -> None:
    server = Server(once(response, close=False))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    with pytest.raises(UpstreamProtocolError):
        await (await post(pool, endpoint)).read(100)
    async with asyncio.timeout(5):
        await server.gone.wait()


@pytest.mark.asyncio
async def test_a_body_over_the_caller_s_limit_ends_the_connection(stack: AsyncExitStack, pool: UpstreamPool) -> None:
    server = Server(once(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000, close=False))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    with pytest.raises(UpstreamProtocolError, match="exceeds 1000"):
        await (await post(pool, endpoint)).read(1000)
    async with asyncio.timeout(5):
        await server.gone.wait()


@pytest.mark.asyncio
async def test_the_engine_sees_an_abort(stack: AsyncExitStack, pool: UpstreamPool) -> None:
    async def endless(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await peer.send(b"3\r\nabc\r\n")
            await asyncio.sleep(0.001)

    server = Server(endless)
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    response = await post(pool, endpoint)
    assert (await response.next() or b"").startswith(b"abc")
    response.abort()
    response.abort()
    async with asyncio.timeout(5):
        await server.gone.wait()


@pytest.mark.asyncio
async def test_a_refusal_that_comes_before_the_body_was_read_is_seen(
    stack: AsyncExitStack, pool: UpstreamPool, tmp_path: Path
) -> None:
    """A gate refuses without reading: the 32 MiB behind the head must neither block the answer nor be sent on."""
    refusal = b"HTTP/1.1 503 Busy\r\nX-Rewarm-Busy: full\r\nContent-Length: 4\r\n\r\nbusy"

    async def refuse(peer: Peer) -> None:
        await peer.head()
        await peer.send(refusal)
        await peer.reader.read(1)  # and waits; the client closes, since the body was not sent whole
        await hold.wait()

    hold = asyncio.Event()
    server = Server(refuse)
    for where in (tmp_path / "s", "127.0.0.1"):
        endpoint = await stack.enter_async_context(server.on(where))
        async with asyncio.timeout(10):
            response = await post(pool, endpoint, b"x" * (32 * 2**20))
            assert response.status == 503
            assert await response.read(10) == b"busy"
    hold.set()


@pytest.mark.asyncio
async def test_a_large_body_arrives_whole(stack: AsyncExitStack, pool: UpstreamPool, tmp_path: Path) -> None:
    body = bytes(range(256)) * (16 * 2**12)
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            got.append((await peer.request())[1])
            await peer.send(OK)

    server = Server(script)
    endpoint = await stack.enter_async_context(server.on(tmp_path / "s"))
    for _ in range(2):
        assert (await post(pool, endpoint, body)).status == 200
    assert got == [body, body]
    assert server.connections == 1


@pytest.mark.asyncio
async def test_a_slow_reader_stops_the_engine_from_sending(
    stack: AsyncExitStack, pool: UpstreamPool, tmp_path: Path
) -> None:
    """Back-pressure: with nobody reading, only buffers fill up; once read, everything comes."""
    total = 64 * 2**20
    sent = 0

    async def flood(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        piece = b"x" * 65536
        while sent < total:
            await peer.send(piece)
            sent += len(piece)

    endpoint = await stack.enter_async_context(Server(flood).on(tmp_path / "s"))
    response = await post(pool, endpoint)
    stopped = -1
    while sent != stopped:  # until two looks see the same: the sender is blocked
        stopped = sent
        for _ in range(50):
            await asyncio.sleep(0.001)
    assert sent < 8 * 2**20
    size = 0
    async for chunk in response.chunks():
        size += len(chunk)
    assert size == total


@pytest.mark.asyncio
async def test_a_nudge_wakes_the_caller_without_data(stack: AsyncExitStack, pool: UpstreamPool) -> None:
    go = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.request()
        await go.wait()
        await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await go_on.wait()
        await peer.send(b"2\r\nok\r\n0\r\n\r\n")

    go_on = asyncio.Event()
    endpoint = await stack.enter_async_context(Server(slow).on("127.0.0.1"))
    response = await pool.open(endpoint, "POST", "/", [], b"")
    response.nudge()
    assert await response.ready() is False
    go.set()
    assert await response.ready() is True
    response.nudge()
    assert await response.next() == b""
    go_on.set()
    assert await response.next() == b"ok"
    assert await response.next() is None


@pytest.mark.parametrize(
    ("target", "header"),
    [("/x\r\nA: b", (b"A", b"b")), ("/", (b"A", b"b\r\nC: d")), ("/", (b"A\n", b"b")), ("/", (b"A", b"\0"))],
)
@pytest.mark.asyncio
async def test_a_line_break_cannot_be_smuggled_in(
    stack: AsyncExitStack, pool: UpstreamPool, target: str, header: tuple[bytes, bytes]
) -> None:
    endpoint = await stack.enter_async_context(Server(answers(OK)).on("127.0.0.1"))
    with pytest.raises(ValueError, match="line break"):
        await pool.request(endpoint, "GET", target, [header], b"")


@pytest.mark.asyncio
async def test_small_requests_are_sent_at_once(stack: AsyncExitStack, pool: UpstreamPool) -> None:
    server = Server(answers(OK))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    response = await pool.open(endpoint, "POST", "/", [], b"")
    connection = response._connection
    assert connection is not None and connection.transport is not None
    peer = connection.transport.get_extra_info("socket")
    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    await response.ready()


@pytest.mark.asyncio
async def test_idle_connections_are_closed_in_time(stack: AsyncExitStack) -> None:
    server = Server(answers(OK))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    pool = UpstreamPool(idle_s=0.1)
    await post(pool, endpoint)
    async with asyncio.timeout(5):
        await server.gone.wait()
    await pool.close()


@pytest.mark.asyncio
async def test_closing_the_pool_ends_what_is_under_way(stack: AsyncExitStack) -> None:
    server = Server(once(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", close=False))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    pool = UpstreamPool()
    response = await post(pool, endpoint)
    await pool.close()
    with pytest.raises(UpstreamDied):
        await response.next()
    with pytest.raises(UpstreamUnreachable):
        await post(pool, endpoint)


@pytest.mark.asyncio
async def test_hundreds_at_once_share_connections_afterwards(stack: AsyncExitStack, pool: UpstreamPool) -> None:
    server = Server(answers(OK))
    endpoint = await stack.enter_async_context(server.on("127.0.0.1"))
    for _ in range(3):
        responses = await asyncio.gather(*(post(pool, endpoint) for _ in range(64)))
        assert [await r.read(10) for r in responses] == [b"ok"] * 64
    assert server.connections <= 64
