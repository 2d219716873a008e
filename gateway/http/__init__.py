"""The gateway's own HTTP/1.1 server side: one parser (llhttp), one protocol object a connection, no framework.

Every request's body is read whole and sent on with a length of our own, so that no disagreement about where a message
ends can reach an engine. ``docs/architecture.md`` says what this is for and what it cost before.
"""

from gateway.http.connection import Handler
from gateway.http.reader import HeadTooLarge, NotServed
from gateway.http.request import BodyTooLong, BodyUnreadable, Request
from gateway.http.response import Answer, Response, StreamResponse, header_lines
from gateway.http.server import Server

__all__ = [
    "Answer",
    "BodyTooLong",
    "BodyUnreadable",
    "Handler",
    "HeadTooLarge",
    "NotServed",
    "Request",
    "Response",
    "Server",
    "StreamResponse",
    "header_lines",
]
