"""The waiting room: held requests by ticket, what arrives for them from Redis, and the heartbeat that vouches for
them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from fleet import Enqueued
from gateway.background import Background
from gateway.calls import Call
from gateway.wakeup import Wakeup
from rewarm.errors import QueueUnavailable
from rewarm.messages import Explanation, Grant, Ticket, TicketFailed

_log = logging.getLogger("rewarm.gateway.waiting")

HEARTBEAT_S = 2.0
HEARTBEAT_TTL_MS = 6000
POSITIONS_EVERY_S = 1.0
_RETRY_S = 0.5
_POSITIONS_AT_ONCE = 500


class TicketQueue(Protocol):
    """What the waiting room needs of :class:`fleet.Queue`."""

    async def enqueue(self, ticket: Ticket, *, max_waiting: int) -> Enqueued: ...
    async def redeem(self, ticket_id: str, grant: str, *, gateway: str | None = None) -> bool: ...
    async def decline(self, ticket_id: str, grant: str) -> bool: ...
    async def cancel(self, ticket_id: str) -> bool: ...
    async def abandon(self, ticket: Ticket) -> None: ...
    async def positions(self, model: str, ids: Sequence[str]) -> dict[str, int | None]: ...
    async def gateway_beat(
        self, gateway: str, *, ttl_ms: int = HEARTBEAT_TTL_MS, held: Sequence[tuple[str, str]] | None = None
    ) -> list[str]: ...
    async def gateway_leave(self, gateway: str) -> None: ...


class Held(Wakeup):
    """One request in the waiting room. ``queued`` says that Redis knows its ticket. It is woken by what arrives, when
    the pulse finds ``call.due`` passed, and when the gateway drains."""

    __slots__ = ("call", "events", "moving", "position", "queued", "ticket")

    def __init__(self, call: Call, ticket: Ticket) -> None:
        super().__init__()
        self.call = call
        self.ticket = ticket
        self.position: int | None = None
        self.queued = False
        self.moving = False  # into a job: that Redis has no such ticket then means nothing
        self.events: list[Grant | TicketFailed] = []


class WaitingRoom:
    def __init__(self, queue: TicketQueue, gateway: str, background: Background) -> None:
        self.gateway = gateway
        self._queue = queue
        self._background = background
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    # --- requests ------------------------------------------------------------------------------------------------

    async def enter(self, held: Held) -> None:
        """Enqueue the ticket. Raise QueueFull or QueueUnavailable. :meth:`leave` must follow in any case."""
        self._held[held.ticket.id] = held
        answer = await self._queue.enqueue(held.ticket, max_waiting=held.call.entry.policy.max_waiting)
        held.queued = True
        held.position = answer.position
        if answer.reattached:
            _log.info("request=%s found the place of its earlier attempt position=%d", held.ticket.id, answer.position)

    def accepted(self, held: Held, grant: Grant) -> None:
        """The gate took the request: from now on the connection is the lease, and the ticket goes."""
        held.queued = False
        held.events.clear()
        ticket, gateway = held.ticket.id, self.gateway
        self._background.errand("redeem", lambda: self._queue.redeem(ticket, grant.grant, gateway=gateway))

    def refused(self, held: Held, grant: Grant) -> None:
        """The gate did not let the request in after all: it waits on, at its old place.

        Where :meth:`accepted` was called too early (a silent gate that turns out to be dead), the ticket is already
        gone from Redis, and the request joins the waiting anew.
        """
        ticket = held.ticket.id
        if held.queued:
            self._background.errand("return", lambda: self._queue.decline(ticket, grant.grant))
        else:
            held.queued = True  # also makes the heartbeat see that it is missing, should the errand not get through
            self._background.errand("requeue", lambda: self._requeue(held))

    def leave(self, held: Held, *, keep_place: bool) -> None:
        """The request is served or gone. ``keep_place``: its client may come back for its place within ten seconds."""
        self._held.pop(held.ticket.id, None)
        if not held.queued:
            return
        held.queued = False
        ticket = held.ticket
        if keep_place:
            self._background.errand("abandon", lambda: self._queue.abandon(ticket))
        else:
            self._background.errand("cancel", lambda: self._queue.cancel(ticket.id))

    def explain(self, explanations: Mapping[str, Explanation]) -> None:
        """What their models wait for, into their receipts."""
        if explanations:
            for held in self._held.values():
                explanation = explanations.get(held.ticket.model)
                if explanation is not None:
                    held.call.waits_for(explanation.text)

    # --- what arrives --------------------------------------------------------------------------------------------

    def deliver(self, event: Grant | TicketFailed) -> None:
        """Give an event to its request; a grant nobody waits for is declined: the ticket goes, the slot expires."""
        held = self._held.get(event.ticket)
        if held is not None and held.queued:
            held.events.append(event)
            held.wake()
        elif isinstance(event, Grant):
            _log.info("request=%s grant=%s declined: it does not wait", event.ticket, event.grant)
            ticket, grant, gateway = event.ticket, event.grant, self.gateway
            self._background.errand("decline", lambda: self._queue.redeem(ticket, grant, gateway=gateway))

    # --- loops ---------------------------------------------------------------------------------------------------

    async def vouch(self) -> None:
        """Heartbeat: this gateway lives, and holds these. What Redis has lost meanwhile is enqueued again."""
        while True:
            try:
                await self.beat()
                await asyncio.sleep(HEARTBEAT_S)
            except QueueUnavailable:
                await asyncio.sleep(_RETRY_S)

    async def beat(self) -> None:
        """Raise QueueUnavailable."""
        held = [(h.ticket.model, ticket) for ticket, h in self._held.items() if h.queued]
        missing = await self._queue.gateway_beat(self.gateway, ttl_ms=HEARTBEAT_TTL_MS, held=held)
        for ticket in missing:
            lost = self._held.get(ticket)
            # A grant that lies here unread explains why Redis has it no longer.
            if lost is not None and lost.queued and not lost.events and not lost.moving:
                _log.warning("request=%s was lost from the queue, enqueued again", ticket)
                await self._requeue(lost)

    async def _requeue(self, held: Held) -> None:
        await self._queue.enqueue(held.ticket, max_waiting=2**31 - 1)  # it was admitted once
        if not held.queued:  # served or gone while we asked
            ticket = held.ticket.id
            self._background.errand("cancel", lambda: self._queue.cancel(ticket))

    async def locate(self) -> None:
        """Keep the queue positions that clients are shown."""
        while True:
            await asyncio.sleep(POSITIONS_EVERY_S)
            by_model: dict[str, list[str]] = {}
            for ticket, held in self._held.items():
                if held.queued:
                    by_model.setdefault(held.ticket.model, []).append(ticket)
            for model, tickets in by_model.items():
                for start in range(0, len(tickets), _POSITIONS_AT_ONCE):
                    some = tickets[start : start + _POSITIONS_AT_ONCE]
                    await self._place(model, some)

    async def _place(self, model: str, tickets: list[str]) -> None:
        try:
            positions = await self._queue.positions(model, tickets)
        except QueueUnavailable:
            return
        for ticket, position in positions.items():
            held = self._held.get(ticket)
            if held is not None:
                held.position = position
