"""An answer's body, held in memory as a whole."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.calls import Call
from gateway.reply import Reply


class Body(Protocol):
    async def next(self) -> bytes | None:
        """The next bytes, b"" after a nudge, None at the end."""


Watch = Callable[[Call, Reply], Awaitable[None]]
"""Called when the engine has been silent for a while; raises when that is too long."""


async def read_whole(
    call: Call, reply: Reply, body: Body, watch: Watch, most: int, larger: Callable[[], Exception]
) -> bytes:
    """Raise what ``larger`` makes where it is over ``most`` bytes, UpstreamDied where it breaks off."""
    parts: list[bytes] = []
    size = 0
    while (chunk := await body.next()) is not None:
        if not chunk:
            await watch(call, reply)
            continue
        parts.append(chunk)
        size += len(chunk)
        if size > most:
            raise larger()
    return b"".join(parts)
