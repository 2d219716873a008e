"""What the queue should do, in plain Python: the state machine's oracle. Times are milliseconds of the test's clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from fleet import ALL_BANDS, GRANT_TTL_MS
from rewarm.messages import Ticket

TIE = 1e-9
LEASE_MS = GRANT_TTL_MS + 1000
GATEWAY_MS = 6000

_epochs = itertools.count(1)


@dataclass
class Held:
    ticket: Ticket
    score: float
    start: float
    epoch: int | None
    grant: str | None = None  # None while it waits
    deadline: float = 0

    @property
    def is_job(self) -> bool:
        return self.ticket.gateway == "@job"


@dataclass
class Band:
    """One band's virtual clock; a fresh one whenever the band has been empty."""

    epoch: int | None = None
    virtual: float = 0.0
    arrivals: int = 0
    finish: dict[str, float] = field(default_factory=dict)


@dataclass
class Model:
    now: float = 0
    held: dict[str, Held] = field(default_factory=dict)
    bands: dict[int, Band] = field(default_factory=lambda: {band: Band() for band in ALL_BANDS})
    gateways: dict[str, float] = field(default_factory=dict)
    kept: dict[str, Held] = field(default_factory=dict)

    def alive(self, gateway: str) -> bool:
        deadline = self.gateways.get(gateway, 0)
        return deadline > 0 and deadline >= self.now

    def ready(self, band: int) -> list[str]:
        waiting = [h for h in self.held.values() if h.grant is None and h.ticket.band == band]
        return [h.ticket.id for h in sorted(waiting, key=lambda h: (h.score, h.ticket.id))]

    def order(self) -> list[str]:
        return [id_ for band in ALL_BANDS for id_ in self.ready(band)]

    def leased(self) -> dict[str, Held]:
        return {id_: h for id_, h in self.held.items() if h.grant is not None}

    def next_place(self, ticket: Ticket) -> tuple[Held, float]:
        """And the tenant's finish when it is taken."""
        band = self.bands[ticket.band]
        start = max(band.virtual, band.finish.get(ticket.tenant, 0.0))
        band.epoch, band.arrivals = band.epoch or next(_epochs), band.arrivals + 1
        return Held(ticket, start + TIE * band.arrivals, start, band.epoch), start + ticket.cost / ticket.weight

    # --- what happens ------------------------------------------------------------------------------------------------

    def enqueue(self, ticket: Ticket, max_waiting: int) -> tuple[int, bool] | None:
        """(position, reattached), or None when it is full."""
        present = self.held.get(ticket.id)
        if present is not None:
            return (self.order().index(ticket.id) if present.grant is None else 0), False
        if sum(1 for h in self.held.values() if h.grant is None and not h.is_job) >= max_waiting:
            return None
        fresh, finish = self.next_place(ticket)
        band = self.bands[ticket.band]
        kept = self.kept.get(ticket.again or "")
        again = False
        if kept is not None and kept.ticket.band == ticket.band:
            old = (kept.score, kept.start) if kept.epoch == fresh.epoch else (band.virtual, band.virtual)
            if old[0] <= fresh.score:
                fresh.score, fresh.start = old
                finish = band.finish.get(ticket.tenant, 0.0)
                again = True
                del self.kept[ticket.again or ""]
        band.finish[ticket.tenant] = finish
        self.held[ticket.id] = fresh
        self.gateways[ticket.gateway] = max(self.gateways.get(ticket.gateway, 0), self.now + GATEWAY_MS)
        return self.order().index(ticket.id), again

    def claim(self, grants: list[str]) -> list[tuple[str, str]]:
        """(ticket, grant) in the order of service."""
        out: list[tuple[str, str]] = []
        for id_ in self.order():
            if len(out) == len(grants):
                break
            held = self.held[id_]
            if self.alive(held.ticket.gateway):
                held.grant, held.deadline = grants[len(out)], self.now + LEASE_MS
                band = self.bands[held.ticket.band]
                band.virtual = max(band.virtual, held.start)
                out.append((id_, held.grant))
            else:
                del self.held[id_]
            self._settle()
        return out

    def remove(self, id_: str) -> bool:
        gone = self.held.pop(id_, None) is not None
        self._settle()
        return gone

    def redeem(self, id_: str, grant: str) -> bool:
        held = self.held.get(id_)
        good = held is not None and held.grant == grant
        self.remove(id_)
        return good

    def abandon(self, id_: str) -> None:
        held = self.held.get(id_)
        if held is not None and held.ticket.again:
            self.kept[held.ticket.again] = held
        self.remove(id_)

    def put_back(self, id_: str) -> bool:
        """True when it waits again, False when it went with its gateway."""
        held = self.held[id_]
        if not self.alive(held.ticket.gateway):
            self.remove(id_)
            return False
        self.return_to_place(held)
        return True

    def return_to_place(self, held: Held) -> None:
        band = self.bands[held.ticket.band]
        if band.epoch is None or band.epoch != held.epoch:
            held.score = held.start = band.virtual
            held.epoch = band.epoch
        held.grant = None

    def reap(self) -> tuple[int, int]:
        leased = {id_: held for id_, held in self.leased().items() if not held.is_job}
        overdue = [id_ for id_, held in leased.items() if held.deadline <= self.now]
        returned = sum([self.put_back(id_) for id_ in overdue])
        dropped = len(overdue) - returned
        for gateway in [gateway for gateway in self.gateways if not self.alive(gateway)]:
            dropped += self.leave(gateway)
        return returned, dropped

    def leave(self, gateway: str) -> int:
        self.gateways.pop(gateway, None)
        theirs = [id_ for id_, held in self.held.items() if held.ticket.gateway == gateway]
        return sum([self.remove(id_) for id_ in theirs])

    def _settle(self) -> None:
        for band in ALL_BANDS:
            if not self.ready(band):
                self.bands[band] = Band()
