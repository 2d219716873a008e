"""Bytes of one connection to requests: the events of the HTTP parser, and what we refuse that it would let pass."""

from __future__ import annotations

from collections import deque

import httptools

from gateway.http.limits import MAX_HEAD_BYTES, MAX_HEADERS, MAX_LINE_BYTES
from gateway.http.peer import Peer
from gateway.http.request import Request


class NotServed(Exception):
    """Well-formed for the parser, not for us."""


class HeadTooLarge(Exception):
    """The head is over the bounds of :mod:`gateway.http.limits`."""


class Reader:
    """Puts each request into ``queue`` once its head is complete; ``unfinished``: the last one while its body comes."""

    __slots__ = ("_framing_only", "_head_bytes", "_headers", "_parser", "_peer", "_queue", "_target", "unfinished")

    def __init__(self, peer: Peer, queue: deque[Request]) -> None:
        self._peer = peer
        self._queue = queue
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._framing_only = False
        self.unfinished: Request | None = None

    def feed(self, data: bytes) -> Exception | None:
        """None, or why nothing from here on can be understood: HeadTooLarge, NotServed, or the parser's own."""
        if self.unfinished is None:
            # Whole heads come in one read, as a rule: what is counted too much (a body's beginning, the next request)
            # is taken back when a head ends.
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            problem = self._carry_on(data[upgrade.args[0] :])
            if problem is not None:
                return problem
        except httptools.HttpParserError as error:
            return _reason(error)
        if self.unfinished is None and self._head_bytes > MAX_HEAD_BYTES:
            return HeadTooLarge(f"the head is over {MAX_HEAD_BYTES} bytes")
        return None

    def _carry_on(self, rest: bytes) -> Exception | None:
        """A request that offers another protocol (Java's client offers HTTP/2 with every first one) is served in this
        one. llhttp leaves its body to the other protocol, so a new parser reads it by the same framing."""
        request = self.unfinished
        if request is None:
            return None
        request.keep_alive = False
        chunked = any(name.lower() == b"transfer-encoding" for name, _ in request.raw_headers)
        if not chunked and not request.content_length:
            self.unfinished = None
            request.end()
            return None
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (request.content_length or 0)
        self._framing_only = True
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(b"POST / HTTP/1.1\r\nConnection: close\r\n%b\r\n\r\n" % framing)
            if rest:
                self._parser.feed_data(rest)
        except httptools.HttpParserError as error:
            return _reason(error)
        return None

    # --- the parser's events -------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._framing_only:
            self._target, self._headers = b"", []

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > MAX_LINE_BYTES:
            raise HeadTooLarge(f"the request's target is over {MAX_LINE_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._framing_only or self.unfinished is not None:
            return  # a trailer: nothing that comes after the body can change what the request is
        self._headers.append((name, value))
        if len(self._headers) > MAX_HEADERS:
            raise HeadTooLarge(f"more than {MAX_HEADERS} headers came")
        if len(value) > MAX_LINE_BYTES or len(name) > MAX_LINE_BYTES:
            raise HeadTooLarge(f"a header line is over {MAX_LINE_BYTES} bytes")

    def on_headers_complete(self) -> None:
        if self._framing_only:
            return
        parser = self._parser
        version = parser.get_http_version()
        length, hosts, chunked = None, 0, False
        for name, value in self._headers:
            size = len(name)
            if size == 14:
                if name.lower() == b"content-length":
                    length = int(value)
            elif size == 4:
                if name.lower() == b"host":
                    hosts += 1
            elif size == 17 and name.lower() == b"transfer-encoding":
                chunked = True
                if value.strip().lower() != b"chunked":
                    raise NotServed("of all transfer encodings only `chunked` is read")
        if version == "1.1":
            if hosts != 1:
                raise NotServed("exactly one Host header is needed")
        elif version != "1.0":
            raise NotServed(f"HTTP/{version} is not spoken here")
        elif chunked:
            raise NotServed("HTTP/1.0 knows no transfer encodings")
        target = self._target.decode("latin-1")
        if not target.startswith("/"):
            target = _origin_form(target)
        request = Request(
            self._peer,
            parser.get_method().decode("latin-1"),
            target,
            self._headers,
            http_1_0=version == "1.0",
            keep_alive=parser.should_keep_alive(),
            content_length=length,
        )
        self.unfinished = request
        self._queue.append(request)

    def on_body(self, data: bytes) -> None:
        if self.unfinished is not None and not self.unfinished.feed(data):
            self._peer.pause_reading()

    def on_message_complete(self) -> None:
        request = self.unfinished
        self._head_bytes = 0
        if request is None or self._parser.should_upgrade():
            return  # with an upgrade the parser stops before the body; see _carry_on
        self.unfinished = None
        self._framing_only = False
        request.end()


def _reason(error: httptools.HttpParserError) -> Exception:
    """What an event of ours raised, or what the parser found."""
    if not isinstance(error, httptools.HttpParserCallbackError):
        return error
    return error.__context__ if isinstance(error.__context__, Exception) else ValueError("not HTTP")


def _origin_form(target: str) -> str:
    """``http://host/path`` as clients write it to a proxy; ``*`` and ``host:port`` have no page here anyway."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        return target
    slash = rest.find("/")
    return rest[slash:] if slash >= 0 else "/"
