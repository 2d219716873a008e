"""Redis's failures → ours. One table, so that every method of the room fails alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions as redis_errors

from fleet._wire import timed_out
from rewarm.errors import QueueUnavailable

# What a server says when it works but will not do this now. Redis 6.2 wraps the error of a command inside a script in
# another message, newer ones append to it: hence a search, not a prefix.
_REFUSALS = re.compile(
    r"\b(OOM command not allowed|READONLY|LOADING|BUSY|MISCONF|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|UNKILLABLE"
    r"|NOAUTH|WRONGPASS|NOPERM)\b"
)
_WORDS = {
    "OOM command not allowed": "Redis is out of memory",
    "READONLY": "Redis is a read-only replica",
    "LOADING": "Redis is loading its data",
    "BUSY": "Redis is busy with a script",
    "MISCONF": "Redis cannot write to its disk",
    "NOAUTH": "Redis asks for a password",
    "WRONGPASS": "Redis refuses the password",
    "NOPERM": "the Redis user lacks a permission",
}


class RedisFull(QueueUnavailable):
    """Out of memory: reads and releases still work, new work is refused."""


def translate(error: Exception) -> QueueUnavailable | None:
    """The typed error, or None where the failure is a bug of ours (a broken script, a wrong type) and must be seen."""
    if isinstance(error, QueueUnavailable):
        return error
    if isinstance(error, redis_errors.BusyLoadingError):
        return QueueUnavailable("Redis is loading its data")
    if isinstance(error, redis_errors.ResponseError | redis_errors.AuthenticationError):
        refusal = _REFUSALS.search(str(error)) or _REFUSALS.search(type(error).__name__.upper())
        if isinstance(error, redis_errors.OutOfMemoryError) or (refusal and refusal[1].startswith("OOM")):
            return RedisFull("Redis is out of memory")
        if isinstance(error, redis_errors.ReadOnlyError):
            return QueueUnavailable("Redis is a read-only replica")
        if isinstance(error, redis_errors.AuthenticationError):
            return QueueUnavailable(f"Redis refuses this client: {error}")
        if refusal is None:
            return None
        return QueueUnavailable(_WORDS.get(refusal[1], f"Redis refuses the command: {error}"))
    if timed_out(error):
        return QueueUnavailable("Redis does not answer")
    if isinstance(error, redis_errors.ConnectionError | OSError):
        return QueueUnavailable("Redis cannot be reached")
    return None


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except (redis_errors.RedisError, OSError) as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
