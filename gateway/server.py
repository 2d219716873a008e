"""The gateway's handler behind its HTTP server, and our own words for what is not HTTP."""

from __future__ import annotations

import httptools

from gateway.http import Handler, HeadTooLarge, NotServed, Response, Server
from gateway.http.limits import KEEP_ALIVE_S
from gateway.reply import error_response
from rewarm.errors import HeadersTooLarge, InvalidRequest, RewarmError


def make_server(handler: Handler, *, keep_alive_s: float = KEEP_ALIVE_S) -> Server:
    return Server(handler, explain, keep_alive_s=keep_alive_s)


def explain(error: Exception) -> Response:
    """Malformed HTTP and our own bugs, as JSON with a code like everything else."""
    if isinstance(error, HeadTooLarge):
        return error_response(HeadersTooLarge(str(error)))
    if isinstance(error, NotServed | httptools.HttpParserError):
        what = f"{error}".splitlines() or [""]
        return error_response(InvalidRequest(f"this is not HTTP that can be served: {what[0]}"))
    return error_response(RewarmError("an unexpected error in the gateway; its log says more"))
