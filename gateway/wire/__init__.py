"""What a client reads while it waits and when something fails: pure functions and small state machines, no sockets.

In come progress, time and the engine's bytes; out come the bytes for the client. Every rule of ``docs/http-api.md``
about comments, no-op chunks, roles, padding and error events lives here and nowhere else.
"""

from gateway.wire.cadence import NEVER, Cadence, PlainCadence, SilentCadence, StreamCadence, Timings
from gateway.wire.chunks import DONE, Chunks, comment, error_event, fallback_comment
from gateway.wire.events import EventFramer
from gateway.wire.role import RoleStripper
from gateway.wire.typed import TypedChunks, TypedFramer

__all__ = [
    "DONE",
    "NEVER",
    "Cadence",
    "Chunks",
    "EventFramer",
    "PlainCadence",
    "RoleStripper",
    "SilentCadence",
    "StreamCadence",
    "Timings",
    "TypedChunks",
    "TypedFramer",
    "comment",
    "error_event",
    "fallback_comment",
]
