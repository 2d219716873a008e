"""A replica's sleep as its agent keeps it: asked of the gate, and its memory in the devices' ledgers.

While a replica sleeps, each ledger counts what its processes still hold. What it needs to wake is kept for it beside
that, as long as nobody else needs it: its gate then *may wake* it for a request without asking. When a load, or another
wake, finds no room, that right is taken back first; from then on requests become tickets, and the leader's want makes
the agent find room before it wakes the replica.

The gate has the last word. A right that is taken back while a request wakes the engine comes too late, and the memory
is counted as in use.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from rewarm.states import FailureReason
from worker.gate.control import GateControl, GateUnreachable
from worker.launch import make_room
from worker.memory import Holding
from worker.report import GateState, Rest
from worker.surroundings import Surroundings

_log = logging.getLogger("rewarm.worker.sleeping")


class Sleeping:
    def __init__(self, replica: str, surroundings: Surroundings, control: GateControl) -> None:
        self._replica = replica
        self._around = surroundings
        self._control = control
        self._kept = False  # memory for its wake
        self._waking = False  # by its want, which counts on the memory; until that is told
        self._may_wake = True  # for a request: as it was told when it last fell asleep
        self.waits_for_room = False

    def settle(self, needs: Mapping[str, int], used: Mapping[str, int], *, asleep: bool) -> None:
        """Into the ledgers, after every measurement: what it holds (bytes by device), and what is kept for it."""
        before = self._around.ledgers.held(self._replica)
        if not before:
            return
        if not asleep:
            self._kept = self._waking = False
            self._around.lenders.pop(self._replica, None)
            self._hold({key: Holding(need, used.get(key, 0)) for key, need in needs.items()})
            return
        if all(h.lent_bytes == 0 and h.need_bytes >= needs.get(key, 0) for key, h in before.items()):
            self._kept = self._may_wake  # it has only just fallen asleep
            if self._kept:
                self._around.lenders[self._replica] = self._take_back
        holdings = {}
        for key, need in needs.items():
            has = used.get(key, 0)
            holdings[key] = Holding(min(need, has), has, max(0, need - has) if self._kept else 0)
        self._hold(holdings)
        self._around.room.set()

    async def fall(self, level: int, if_last_activity_s: float | None, *, may_wake: bool) -> GateState:
        """Raise GateUnreachable. ``may_wake``: a request may wake it, whose memory is kept for it; otherwise others
        have it at once."""
        self._may_wake, self._waking = may_wake, False
        return await self._control.sleep(level, if_last_activity_s, may_wake=may_wake)

    async def wake(self, needs: Mapping[str, int], arithmetic: str) -> GateState | None:
        """Once there is room; None while there is none. Raise GateUnreachable."""
        self._waking, gate = True, None
        try:
            self.waits_for_room = not await self._regain(needs, arithmetic)
            if not self.waits_for_room:
                gate = await self._control.wake()
        finally:
            self._waking = gate is not None and gate.rest is not Rest.ASLEEP
        return gate

    async def renew(self, needs: Mapping[str, int]) -> None:
        """Give the right to wake back where there is room again, without taking anything from anybody."""
        if not self._may_renew():
            return
        async with self._around.device.hold() as others:
            readings = await self._around.watch.read()
            if not self._may_renew():
                return  # woken, or gone, while this waited
            missing = self._missing(needs)
            if not self._around.ledgers.admit(missing, "", readings, others).fits:
                return
            self._keep(missing)
        await self._control.let_wake(True)

    def _may_renew(self) -> bool:
        return not self._kept and bool(self._around.ledgers.held(self._replica))

    async def _regain(self, needs: Mapping[str, int], arithmetic: str) -> bool:
        if self._kept:
            return True
        async with self._around.device.hold() as others:
            missing = self._missing(needs)
            verdict = await make_room(self._around, missing, arithmetic, others)
            if verdict.reason is FailureReason.NO_ROOM or not self._around.ledgers.held(self._replica):
                return False  # or it has ended meanwhile
            self._keep(missing)
        return True

    def _missing(self, needs: Mapping[str, int]) -> dict[str, int]:
        held = self._around.ledgers.held(self._replica)
        return {key: max(0, need - held.get(key, Holding(0)).need_bytes) for key, need in needs.items()}

    def _keep(self, missing: Mapping[str, int]) -> None:
        held = self._around.ledgers.held(self._replica)
        self._kept = True
        self._around.lenders[self._replica] = self._take_back
        self._hold({key: replace(held.get(key, Holding(0)), lent_bytes=more) for key, more in missing.items()})

    async def _take_back(self) -> bool:
        """Somebody needs the room: whether there is more of it now."""
        held = self._around.ledgers.held(self._replica)
        lent = sum(holding.lent_bytes for holding in held.values())
        if not self._kept or not lent or self._waking:
            return False
        try:
            state = await self._control.let_wake(False)
        except GateUnreachable as error:
            _log.warning("event=not-taken-back replica=%s error=%s", self._replica, error)
            return False
        if state.rest is not Rest.ASLEEP or self._waking:
            return False  # a request was first, or a want that has taken the room for granted
        self._kept = False
        self._around.lenders.pop(self._replica, None)
        held = self._around.ledgers.held(self._replica)  # nothing, where it has ended meanwhile
        self._hold({key: replace(holding, lent_bytes=0) for key, holding in held.items()})
        _log.info("event=room-taken-back replica=%s bytes=%d", self._replica, lent)
        return True

    def _hold(self, holdings: Mapping[str, Holding]) -> None:
        self._around.ledgers.hold(self._replica, holdings)
