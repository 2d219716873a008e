"""Bounds of the upstream client. An engine is ours, but what it runs is not: it gets no way to exhaust the gateway."""

from __future__ import annotations

MAX_HEAD_BYTES = 64 * 2**10
"""Status line and headers together."""

MAX_HEADERS = 128

READ_BUFFER_BYTES = 256 * 2**10
"""Body bytes that wait for a slow client before we stop reading from the engine."""

STALE_WITHIN_S = 0.5
"""A kept connection that ends so soon after a request was sent on it had been closed before; one that ends later was
that of an engine that had begun."""

WRITE_SLICE_BYTES = 64 * 2**10
"""A larger body is written in slices, so that a refusal that comes before the body has been read stops the sending."""

WHOLE_BODY_BYTES = 64 * 2**10
"""A response of at most this known length is handed over in one piece: one wake-up of the caller instead of two."""
