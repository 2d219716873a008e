"""The headers that belong to one connection, and never pass a proxy (RFC 9110, 7.6.1)."""

from __future__ import annotations

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
