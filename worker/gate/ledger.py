"""The slots of one replica: who may run now. Pure: no clock, no socket, no task; ``now`` is injected
(CLOCK_MONOTONIC, s).

A slot is taken by a *direct* request (the hot path, decided here at once) or *reserved* by the agent for tickets that
it then claims; the gateway that holds the ticket *redeems* the grant. A grant that nobody redeems frees its slot by
itself. Invariant: ``running + reserved <= slots``, whatever the order of calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from worker.report import GateState

GRANT_EXPIRY_S = 2.0
"""How long a grant may wait for its gateway, counted from the claim (``fleet`` writes the same into the grant)."""

GRANT_MARGIN_S = 1.0
"""Kept longer at the gate: the reservation precedes the claim, and the gateway's request takes its time to arrive."""

UNNAMED_BAND = 1_000_000
"""Band of a direct request that names none: it passes only while nothing waits."""


class Busy(StrEnum):
    """Why a request may not run now; the value of ``X-Rewarm-Busy``."""

    FULL = "full"
    WAITING = "waiting"  # a ticket of an equal or higher band waits: a direct request must not overtake it
    DRAINING = "draining"
    ASLEEP = "asleep"  # and others have the memory that it needs
    GRANT = "grant"  # unknown, expired, or redeemed before


class Ledger:
    def __init__(self, slots: int, now: float) -> None:
        if slots < 1:
            raise ValueError(f"a gate needs at least one slot, not {slots}")
        self.slots = slots
        self.running = 0
        self.draining = False
        self.waiting_band: int | None = None
        self.last_activity_s = now
        self.served = 0
        self.peak = 0
        self._grants: dict[str, float] = {}  # grant id → when its slot is freed; insertion order is expiry order

    @property
    def reserved(self) -> int:
        return len(self._grants)

    @property
    def free(self) -> int:
        return self.slots - self.running - len(self._grants)

    def admit(self, band: int, now: float) -> Busy | None:
        """A direct request: None when it may run, and then its slot is taken until :meth:`finish`."""
        self.expire(now)
        if self.draining:
            return Busy.DRAINING
        if self.waiting_band is not None and band >= self.waiting_band:
            return Busy.WAITING
        if self.free <= 0:
            return Busy.FULL
        self._run()
        return None

    def reserve(self, grants: Sequence[str], now: float) -> tuple[str, ...]:
        """Reserve one slot for each id as far as there is room; the ids that got one. None while draining."""
        self.expire(now)
        if self.draining:
            return ()
        taken = tuple(grant for grant in dict.fromkeys(grants) if grant not in self._grants)[: max(0, self.free)]
        for grant in taken:
            self._grants[grant] = now + GRANT_EXPIRY_S + GRANT_MARGIN_S
        return taken

    def redeem(self, grant: str, now: float) -> Busy | None:
        """A granted request: honoured while draining too, because it was promised before. Once only."""
        self.expire(now)
        if self._grants.pop(grant, None) is None:
            return Busy.GRANT
        self._run()
        return None

    def release(self, grants: Iterable[str]) -> int:
        """Free reserved slots that no ticket took; the number freed. Unknown and redeemed ids are ignored."""
        return sum(self._grants.pop(grant, None) is not None for grant in grants)

    def finish(self, now: float) -> None:
        """A running request ended, however it ended. The idle clock starts here."""
        if self.running <= 0:
            raise RuntimeError("finish without a running request")
        self.running -= 1
        self.served += 1
        self.last_activity_s = now

    def expire(self, now: float) -> int:
        """Free the slots of grants whose time is over; the number freed."""
        late = [grant for grant, until in self._grants.items() if until <= now]
        for grant in late:
            del self._grants[grant]
        return len(late)

    def next_expiry_s(self) -> float | None:
        return min(self._grants.values(), default=None)

    def drain(self, if_last_activity_s: float | None = None) -> bool:
        """Refuse new requests. With ``if_last_activity_s`` only if nothing runs or was promised and nothing ended
        since: an idle stop must not hit a request that arrived after the leader looked. True when it drains."""
        if if_last_activity_s is not None and not self.draining and not self.idle_since(if_last_activity_s):
            return False
        self.draining = True
        return True

    def idle_since(self, last_activity_s: float | None = None) -> bool:
        """Nothing runs and nothing was promised; with ``last_activity_s`` nothing ended since then either."""
        busy = self.running > 0 or bool(self._grants)
        return not busy and (last_activity_s is None or self.last_activity_s == last_activity_s)

    def undrain(self, now: float) -> None:
        if self.draining:
            self.draining = False
            self.last_activity_s = now  # somebody wants it: the idle clock starts anew

    def state(self, now: float) -> GateState:
        self.expire(now)
        return GateState(
            slots=self.slots,
            running=self.running,
            reserved=self.reserved,
            draining=self.draining,
            waiting_band=self.waiting_band,
            last_activity_s=self.last_activity_s,
            served=self.served,
            peak=self.peak,
        )

    def _run(self) -> None:
        self.running += 1
        self.peak = max(self.peak, self.running)
