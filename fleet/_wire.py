"""One command over one connection, and when it is worth saying again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from redis import exceptions as redis_errors
from redis.asyncio import Redis

_T = TypeVar("_T")


async def execute(redis: Redis, *command: str | bytes | int | float) -> Any:
    return await cast(Any, redis).execute_command(*command)  # redis-py leaves it untyped


async def repeated(attempt: Callable[[], Awaitable[_T]]) -> _T:
    """Run ``attempt``, and once more when a connection broke: after a restart of Redis every pooled one breaks once.

    The command may have been carried out before; everything this room sends may be repeated. Not after a timeout: the
    caller has waited enough.
    """
    try:
        return await attempt()
    except (redis_errors.BusyLoadingError, redis_errors.AuthenticationError, redis_errors.MaxConnectionsError):
        raise
    except redis_errors.ConnectionError as error:
        if timed_out(error):
            raise
        return await attempt()


def timed_out(error: BaseException | None) -> bool:
    """redis-py turns a timeout of a new connection's greeting, or of the pool, into a ConnectionError around it."""
    while error is not None:
        if isinstance(error, redis_errors.TimeoutError | TimeoutError):
            return True
        error = error.__cause__ or error.__context__
    return False
