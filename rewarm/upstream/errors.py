"""What can go wrong between us and an engine. Not shown to clients: callers turn these into :mod:`rewarm.errors`."""

from __future__ import annotations


class UpstreamError(Exception):
    """Base of those below."""


class UpstreamUnreachable(UpstreamError):
    """No connection came about: the engine has seen nothing of the request."""


class UpstreamUntrusted(UpstreamUnreachable):
    """Its certificate is not valid: nothing was sent."""


class UpstreamDied(UpstreamError):
    """The connection ended after the request was sent, before the response was whole."""


class UpstreamProtocolError(UpstreamError):
    """The peer's bytes are not an HTTP/1.1 response, or exceed the bounds on its head."""
