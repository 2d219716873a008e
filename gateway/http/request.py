"""One request: its head, and its body as it arrives."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qsl, unquote

from multidict import CIMultiDict, MultiDict

from gateway.http.limits import READ_BUFFER_BYTES
from gateway.http.peer import Peer


class BodyTooLong(ValueError):
    """More bytes than the reader wants."""


class BodyUnreadable(ValueError):
    """The body's framing is broken: a chunk without a size, for one. Nothing more can be read on this connection."""


class Request:
    """``complete`` once the last byte of the body has arrived.

    ``raw_headers`` are as sent, in order; ``headers`` the same by name, whatever its case.
    """

    __slots__ = (
        "_buffered",
        "_chunks",
        "_connection",
        "_error",
        "_headers",
        "_waiter",
        "complete",
        "content_length",
        "http_1_0",
        "keep_alive",
        "method",
        "path",
        "query_string",
        "raw_headers",
    )

    def __init__(
        self,
        connection: Peer,
        method: str,
        target: str,
        raw_headers: list[tuple[bytes, bytes]],
        *,
        http_1_0: bool,
        keep_alive: bool,
        content_length: int | None,
    ) -> None:
        path, _, self.query_string = target.partition("?")
        self.path = unquote(path) if "%" in path else path
        self.method = method
        self.raw_headers = raw_headers
        self.http_1_0 = http_1_0
        self.keep_alive = keep_alive
        self.content_length = content_length  # None: sent in chunks, or no body
        self.complete = False
        self._connection = connection
        self._headers: CIMultiDict[str] | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: BodyUnreadable | None = None

    @property
    def headers(self) -> CIMultiDict[str]:
        if self._headers is None:
            self._headers = CIMultiDict(
                [(name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in self.raw_headers]
            )
        return self._headers

    @property
    def query(self) -> MultiDict[str]:
        return MultiDict(parse_qsl(self.query_string, keep_blank_values=True))

    @property
    def content_type(self) -> str:
        """Without its parameters, in lower case; empty where none was sent."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def remote(self) -> str | None:
        """The client's address; None on a unix socket."""
        return self._connection.remote

    @property
    def connection(self) -> Peer:
        return self._connection

    def abort(self) -> None:
        """Cut the connection: for an answer that must not look whole."""
        self._connection.abort()

    # --- the body ------------------------------------------------------------------------------------------------

    async def read(self, limit: int) -> bytes:
        """The whole body. Raise BodyTooLong as soon as it is over ``limit`` bytes, or BodyUnreadable."""
        if self.content_length is not None and self.content_length > limit:
            raise BodyTooLong(f"{self.content_length} bytes")
        if not self.complete and self._error is None and self._expects_continue():
            self._connection.send_continue()
        while not self.complete:
            if self._buffered > limit:
                break
            if self._error is not None:
                raise self._error
            self._connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._buffered > limit:
            raise BodyTooLong(f"over {limit} bytes")
        chunks, self._chunks, self._buffered = self._chunks, [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def feed(self, data: bytes) -> bool:
        """Body bytes from the connection; False when it should stop reading for now."""
        self._chunks.append(data)
        self._buffered += len(data)
        self._wake()
        return self._waiter is not None or self._buffered <= READ_BUFFER_BYTES

    def end(self) -> None:
        self.complete = True
        self._wake()

    def fail(self, error: BodyUnreadable) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _expects_continue(self) -> bool:
        return not self.http_1_0 and self.headers.get("Expect", "").lower() == "100-continue"
