"""Bounds on what a client may send, and on how long it may take."""

from __future__ import annotations

MAX_LINE_BYTES = 8190
"""Of the request's target, and of a header's name and value each."""

MAX_HEADERS = 128

MAX_HEAD_BYTES = 64 * 2**10
"""Request line and headers together."""

READ_BUFFER_BYTES = 256 * 2**10
"""Body bytes that wait for a handler that does not read before the client is left to wait."""

KEEP_ALIVE_S = 75.0
"""An idle connection is closed after this; also one whose head does not get complete."""

WRITE_STALL_S = 60.0
"""A client that takes not a byte of what waits for it for so long is cut off: until then its answer holds a slot of an
engine. One that reads slowly is waited for."""

LINGER_S = 5.0
"""After an answer to a request that was not read to its end: what still comes is thrown away for so long, because a
connection closed under a sender is reset, and the answer lost with it."""

LINGER_BYTES = 16 * 2**20

SWEEP_EVERY_S = 2.0
