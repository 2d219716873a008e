"""The watch over an answer's silence, whoever answers: its client sees that we live, and too long a silence ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gateway.calls import Call
from gateway.drain import Drain
from gateway.reply import Reply
from rewarm.errors import EngineStalled, ShuttingDown

ACCEPTED_AFTER_S = 0.3
"""A gate refuses at once. No refusal for so long means that it took the grant, long before the grant's two seconds
end."""

PLAIN_STALL_FACTOR = 5.0
"""A plain answer is silent until it is whole: it may take this many times a stream's longest silence."""


class Awaited(Protocol):
    """An answer of which the head may not have come yet."""

    async def ready(self) -> bool: ...
    def nudge(self) -> None: ...


class Silence:
    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._loop = asyncio.get_running_loop()

    async def head(self, call: Call, reply: Reply, answer: Awaited, accepted: Callable[[], None] | None = None) -> None:
        """Wait for the head. ``accepted`` is called when a refusal would have come by now."""
        call.waker = answer.nudge
        sent_at = call.last_at = self._loop.time()
        stall_s = stall_of(call)
        call.due = min(reply.due(), sent_at + stall_s)
        if accepted is not None:
            call.due = min(call.due, sent_at + ACCEPTED_AFTER_S)
        while not await answer.ready():
            if accepted is not None and self._loop.time() >= sent_at + ACCEPTED_AFTER_S:
                accepted()
                accepted = None
            await self.watch(call, reply)
            if accepted is not None:
                call.due = min(call.due, sent_at + ACCEPTED_AFTER_S)

    async def watch(self, call: Call, reply: Reply) -> None:
        """Nothing has come for a while: show that we live, unless the engine has been silent for too long."""
        now = self._loop.time()
        stall_s = stall_of(call)
        if now >= call.last_at + stall_s:
            raise EngineStalled(f"the engine of {call.entry.model!r} sent nothing for {stall_s:.0f} s")
        if self._drain.expired:
            raise ShuttingDown("this gateway stops, and the answer was not finished in the time it may take")
        await reply.sign(None, "running")
        call.due = min(reply.due(), call.last_at + stall_s)


def stall_of(call: Call) -> float:
    """Seconds of silence that end the answer."""
    return call.entry.spec.answer_stall_s * (1.0 if call.stream else PLAIN_STALL_FACTOR)
