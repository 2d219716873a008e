"""A request from the moment it is understood to its receipt, and the pulse that wakes those that wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gateway.http import Request
from rewarm.messages import CatalogueEntry, PhaseTiming, Receipt, ReplicaReport, Wake
from rewarm.splice import splice_model
from rewarm.states import Tier

if TYPE_CHECKING:
    from gateway.keys import Caller
    from gateway.limits import Charge
    from gateway.standby import Standby
    from rewarm.tracing import RequestTrace

NEVER = math.inf

PULSE_S = 0.25
"""How exactly deadlines and comments are kept. One timer for all requests: a timer each costs more than it tells."""

_MOST_WORDS = 8


class Call:
    """What is known of one request. Times ``*_at`` are the event loop's; ``waker`` is who must look when ``due`` has
    come."""

    __slots__ = (
        "asked",
        "attempts",
        "body",
        "bytes_out",
        "caller",
        "charge",
        "chat",
        "created_ms",
        "due",
        "engine_status",
        "entry",
        "error",
        "fallback",
        "first_byte_at",
        "held_at",
        "id",
        "keep_alive_s",
        "last_at",
        "model",
        "outgoing",
        "path",
        "replica",
        "request",
        "requeues",
        "slept",
        "standby",
        "start",
        "started_at",
        "state",
        "status",
        "stream",
        "tickets",
        "tier",
        "trace",
        "typed",
        "waited_for",
        "waited_s",
        "wake",
        "waker",
        "worker",
    )

    def __init__(
        self,
        request: Request,
        request_id: str,
        caller: Caller,
        entry: CatalogueEntry,
        *,
        model: str,
        path: str,
        body: bytes,
        stream: bool,
        chat: bool,
        typed: bool = False,
        keep_alive_s: float | None = None,
        now: float,
        now_ms: int,
        charge: Charge | None = None,
    ) -> None:
        self.request = request
        self.id = request_id
        self.caller = caller
        self.asked = entry.model  # the one that was asked for, by its own name
        self.model = model  # as the client named it
        self.path = path
        self.body = body
        self.address(entry)
        self.stream = stream
        self.chat = chat
        self.charge = charge  # what it counts as against its key's limits
        self.typed = typed  # its stream is of typed events: see gateway.wire.typed
        self.keep_alive_s = keep_alive_s
        self.started_at = now
        self.created_ms = now_ms
        self.due = NEVER
        self.waker: Callable[[], None] | None = None
        self.state = "running"
        self.start = "warm"
        self.status = 0  # that the client was told
        self.engine_status = 0  # of the latest answer; may come after the client was told a 200
        self.error: str | None = None
        self.held_at: float | None = None
        self.waited_s = 0.0
        self.waited_for: tuple[str, ...] = ()  # in the leader's words, one after the other
        self.last_at = now  # last sign of the engine
        self.first_byte_at: float | None = None
        self.bytes_out = 0
        self.attempts = 0
        self.requeues = 0
        self.tickets = 0  # that it has had in queues
        self.replica: str | None = None
        self.worker: str | None = None
        self.tier: Tier | None = None
        self.slept: ReplicaReport | None = None  # the replica that it went to and woke, as it was told before
        self.trace: RequestTrace | None = None
        self.wake: Wake | None = None  # the one that it waited for
        self.standby: Standby | None = None  # who may answer instead
        self.fallback = ""  # why another model than the one asked for answers: a reason of rewarm.fallback

    def address(self, entry: CatalogueEntry) -> None:
        """``entry`` is of the model that answers; ``outgoing`` is what its engine is sent. The body's own name stays,
        but a fallback's has its name in it, and so has an adapter's, of which an engine knows no aliases."""
        self.entry = entry
        renamed = entry.model != self.asked or (entry.base and entry.model != self.model)
        self.outgoing = splice_model(self.body, entry.model) if renamed else self.body

    def passed(self, chunk: bytes) -> None:
        """Bytes of the engine's answer, as it gave them."""
        self.bytes_out += len(chunk)
        if self.charge is not None:
            self.charge.tap.feed(chunk)

    @property
    def timings(self) -> tuple[PhaseTiming, ...]:
        """The phases of the wake that it waited for."""
        return () if self.wake is None else self.wake.timings

    def waits_for(self, why: str) -> None:
        """The leader has said what it waits for now."""
        if why not in self.waited_for and len(self.waited_for) < _MOST_WORDS:
            self.waited_for = (*self.waited_for, why)

    def receipt(self, now: float) -> Receipt:
        first = self.first_byte_at
        waited = self.waited_s if self.held_at is None else self.waited_s + now - self.held_at
        return Receipt(
            id=self.id,
            tenant=self.caller.tenant,
            model=self.model,
            served_model=self.entry.model,
            path=self.path,
            stream=self.stream,
            state=self.state,
            start=self.start,
            created_ms=self.created_ms,
            replica=self.replica,
            worker=self.worker,
            tier=self.tier,
            status=self.status,
            error=self.error,
            waited_s=waited,
            first_byte_s=None if first is None else first - self.started_at,
            total_s=now - self.started_at,
            attempts=max(1, self.attempts),
            timings=self.timings,
            bytes_out=self.bytes_out,
            wake=self.wake,
            fallback=self.fallback,
            waited_for=self.waited_for,
        )


class Calls:
    """The requests under way in this gateway, by id."""

    def __init__(self) -> None:
        self._live: dict[str, Call] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._live.values())

    def get(self, request_id: str) -> Call | None:
        return self._live.get(request_id)

    def add(self, call: Call) -> None:
        self._live[call.id] = call
        self._empty.clear()

    def remove(self, call: Call) -> None:
        self._live.pop(call.id, None)
        if not self._live:
            self._empty.set()

    async def wait_empty(self) -> None:
        await self._empty.wait()

    def wake_all(self) -> None:
        for call in list(self._live.values()):
            if call.waker is not None:
                call.waker()

    async def pulse(self) -> None:
        """Wake each call whose ``due`` has come; it sets the next one itself."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PULSE_S)
            now = loop.time()
            for call in list(self._live.values()):
                if call.due <= now:
                    call.due = NEVER
                    if call.waker is not None:
                        call.waker()
