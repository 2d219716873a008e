"""redis-py's connections, made to end when their task is cancelled.

redis-py sends with ``asyncio.wait_for``, and until Python 3.12 that function *swallows* a cancellation that arrives
just as the send completes: the task goes on, and whoever cancelled it waits for ever. About one stop in thirty hung
that way, for a listener under a steady stream of hints. Here the send has an ``asyncio.timeout``, which does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection, parse_url


class _Cancellable(AbstractConnection):
    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if isinstance(command, str):
            command = command.encode()
        try:
            async with asyncio.timeout(self.socket_timeout):
                await self._send_packed_command([command] if isinstance(command, bytes) else command)
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise redis_errors.TimeoutError("Timeout writing to socket") from None
        except OSError as error:
            await self.disconnect(nowait=True)
            raise redis_errors.ConnectionError(f"Error while writing to socket: {error}") from error
        except BaseException:
            # Half a command may have gone out: the connection is of no use to the next caller.
            await self.disconnect(nowait=True)
            raise


class _Tcp(_Cancellable, Connection):
    pass


class _Tls(_Cancellable, SSLConnection):
    pass


class _Unix(_Cancellable, UnixDomainSocketConnection):
    pass


_CLASSES: dict[type[Any], type[AbstractConnection]] = {SSLConnection: _Tls, UnixDomainSocketConnection: _Unix}


def pool(url: str, **options: Any) -> BlockingConnectionPool:
    """Raise ValueError for a URL that is none of Redis's."""
    parsed: dict[str, Any] = dict(parse_url(url))
    kind = parsed.pop("connection_class", Connection)
    return BlockingConnectionPool(connection_class=_CLASSES.get(kind, _Tcp), **{**options, **parsed})
