"""What can go wrong between us and an engine. Not shown to clients: callers turn these into :mod:`rewarm.errors`."""

from __future__ import annotations


class UpstreamError(Exception):
    """Base of those below."""


class UpstreamUnreachable(UpstreamError):
    """No connection came about, or it ended before the request was read: another may be asked."""


class UpstreamUnread(UpstreamUnreachable):
    """The connection ended, and a part of the request still lay in it: it was never whole at the engine."""

    def __init__(self, message: str, *, kept: bool) -> None:
        super().__init__(message)
        self.kept = kept  # from an earlier request: a new connection may find somebody there


class UpstreamUntrusted(UpstreamUnreachable):
    """Its certificate is not valid: nothing was sent."""


class UpstreamDied(UpstreamError):
    """The connection ended after the request was sent, before the response was whole."""


class StaleConnection(UpstreamDied):
    """The connection was kept from an earlier request and ended as this one was sent, before any byte of a response."""


class UpstreamProtocolError(UpstreamError):
    """The peer's bytes are not an HTTP/1.1 response, or exceed the bounds on its head."""
