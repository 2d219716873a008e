"""The queue on a real Redis against :class:`tests.fleet.model.Model`, step by step.

The universe is small on purpose (eight tickets, two tenants, three gateways, two bands), so that crashes, expiries and
repeats meet on the same ticket. After every step all places in Redis are compared: a ticket is ready, leased or gone.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fleet import ALL_BANDS, BANDS, Claimed, FleetClient, Queue
from fleet.leaks import find_leaks
from rewarm.errors import QueueFull
from rewarm.messages import Grant, Ticket, decode_gateway_event
from tests.fleet.helpers import forget_fleet
from tests.fleet.model import Model
from tests.redis_server import patience

MAX_WAITING = 5
STEP_MS = 2600
"""Time passes in steps that are no divisor of any deadline, so that nothing is decided by a millisecond."""

TICKETS = tuple(
    Ticket(
        id=f"t{i}",
        model="m",
        tenant="AB"[i % 2],
        gateway=f"gw-{i % 3}",
        band=BANDS[i // 6],
        weight=1.0 + i % 2,
        cost=1.0,
        again=None if i % 4 == 3 else f"again-{i % 4}",
    )
    for i in range(8)
)
IDS = st.sampled_from([ticket.id for ticket in TICKETS])
GATEWAYS = st.sampled_from(sorted({ticket.gateway for ticket in TICKETS}))

_T = TypeVar("_T")
_claims = itertools.count()


def machine(url: str, source: Mapping[str, str]) -> type[RuleBasedStateMachine]:
    """The state machine on the Redis at ``url``, running the scripts of ``source``."""

    class QueueMachine(RuleBasedStateMachine):
        new_model: type[Model] = Model

        def __init__(self) -> None:
            super().__init__()
            self.loop = asyncio.new_event_loop()
            self.quiet = False  # time has passed without a sign of life
            self.model = self.new_model(now=time.time() * 1000)
            with patience():
                self.client = self.run(FleetClient.connect(url, f"machine-{uuid.uuid4().hex[:12]}", check=False))
            self.client.scripts.use(source)
            self.queue = Queue(self.client)
            self.claims: list[tuple[str, list[str], Claimed]] = []
            self.grants: list[tuple[str, str]] = []  # every (ticket, grant) there ever was

        def run(self, step: Coroutine[Any, Any, _T]) -> _T:
            if hasattr(self, "client"):
                # The scripts see the model's time, whatever the test machine is doing; and signs of life, so no grace.
                self.client.scripts.clock_offset_ms = round(self.model.now - time.time() * 1000)
                if self.quiet:
                    pulse = self.client.call("HSET", self.client.keys.pulse, "at", int(self.model.now))
                    self.loop.run_until_complete(pulse)
                    self.quiet = False
            return self.loop.run_until_complete(step)

        def teardown(self) -> None:
            self.run(forget_fleet(self.client))
            self.run(self.client.close())
            self.loop.close()

        def ticket(self, id_: str) -> Ticket:
            return next(ticket for ticket in TICKETS if ticket.id == id_)

        # --- gateways ------------------------------------------------------------------------------------------------

        @rule(id_=IDS)
        def enqueue(self, id_: str) -> None:
            ticket = self.ticket(id_)
            self._forget_expired(ticket)
            expected = self.model.enqueue(ticket, MAX_WAITING)
            try:
                got = self.run(self.queue.enqueue(ticket, max_waiting=MAX_WAITING))
            except QueueFull:
                assert expected is None
            else:
                assert (got.position, got.reattached) == expected

        @rule(id_=IDS)
        def cancel(self, id_: str) -> None:
            assert self.run(self.queue.cancel(id_)) == self.model.remove(id_)

        @rule(id_=IDS)
        def abandon(self, id_: str) -> None:
            self.run(self.queue.abandon(self.ticket(id_)))
            self.model.abandon(id_)

        @precondition(lambda self: self.grants)
        @rule(data=st.data())
        def redeem(self, data: st.DataObject) -> None:
            id_, grant = data.draw(st.sampled_from(self.grants[-4:]))
            redeemed = self.run(self.queue.redeem(id_, grant, gateway=self.ticket(id_).gateway))
            assert redeemed == self.model.redeem(id_, grant)

        @precondition(lambda self: self.grants)
        @rule(data=st.data())
        def decline(self, data: st.DataObject) -> None:
            id_, grant = data.draw(st.sampled_from(self.grants[-4:]))
            held = self.model.held.get(id_)
            expected = held is not None and held.grant == grant and self.model.put_back(id_)
            assert self.run(self.queue.decline(id_, grant)) == expected

        @rule(gateway=GATEWAYS)
        def gateway_beat(self, gateway: str) -> None:
            held = [("m", ticket.id) for ticket in TICKETS if ticket.gateway == gateway]
            missing = self.run(self.queue.gateway_beat(gateway, held=held))
            assert sorted(missing) == sorted(id_ for _, id_ in held if id_ not in self.model.held)
            self.model.gateways[gateway] = self.model.now + 6000

        @rule(gateway=GATEWAYS)
        def gateway_leave(self, gateway: str) -> None:
            self.run(self.queue.gateway_leave(gateway))
            self.model.leave(gateway)

        # --- workers and leader --------------------------------------------------------------------------------------

        @rule(count=st.integers(1, 3))
        def claim(self, count: int) -> None:
            request = f"claim-{next(_claims)}"
            offers = [f"{request}-{i}" for i in range(count)]
            got = self.run(self.queue.claim("m", "w", "r", "unix:/s", offers, request_id=request))
            expected = self.model.claim(offers)
            assert [(grant.ticket, grant.grant) for grant in got.grants] == expected
            assert got.waiting == len(self.model.order())
            assert got.highest_waiting_band == next((band for band in BANDS if self.model.ready(band)), None)
            self.grants += expected
            self.claims.append((request, offers, got))

        @precondition(lambda self: self.claims)
        @rule()
        def claim_again_because_the_reply_was_lost(self) -> None:
            request, offers, before = self.claims[-1]
            if self.run(self.client.call("EXISTS", self.client.keys.claim(request))):
                assert self.run(self.queue.claim("m", "w", "r", "unix:/s", offers, request_id=request)) == before

        @rule()
        def reap(self) -> None:
            reaped = self.run(self.queue.reap())
            assert (reaped.returned, reaped.dropped) == self.model.reap()

        @rule(steps=st.integers(1, 3))
        def time_passes(self, steps: int) -> None:
            self.model.now += steps * STEP_MS
            self.quiet = True

        # --- what always holds ---------------------------------------------------------------------------------------

        @invariant()
        def every_ticket_is_in_one_place_and_in_its_order(self) -> None:
            keys = self.client.keys
            sets = [keys.lease, *(keys.ready("m", band) for band in ALL_BANDS)]
            leased, *ready = self.run(self.client.pipeline([("ZRANGE", name, 0, -1) for name in sets]))
            assert [[id_.decode() for id_ in ids] for ids in ready] == [self.model.ready(band) for band in ALL_BANDS]
            assert {id_.decode() for id_ in leased} == set(self.model.leased())
            assert self.run(find_leaks(self.client)) == []

        @invariant()
        def no_grant_is_offered_twice(self) -> None:
            streams = [self.client.keys.grants(gateway) for gateway in sorted({ticket.gateway for ticket in TICKETS})]
            read = self.run(self.client.pipeline([("XRANGE", stream, "-", "+") for stream in streams]))
            offered = [decode_gateway_event(fields[b"e"]) for entries in read for _, fields in entries]
            grants = [event.grant for event in offered if isinstance(event, Grant)]
            assert len(grants) == len(set(grants))
            assert {held.grant for held in self.model.leased().values() if not held.is_job} <= set(grants)

        def _forget_expired(self, ticket: Ticket) -> None:
            # Kept places end by Redis's own clock, which no test moves; a slow run may meet that.
            if ticket.again and not self.run(self.client.call("EXISTS", self.client.keys.again(ticket.again))):
                self.model.kept.pop(ticket.again, None)

    return QueueMachine
