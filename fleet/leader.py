"""Who decides for the fleet: one owner at a time, known by a term that only grows.

States: *candidate* (``term`` is None) → *leader* (``campaign`` won, ``trusted()``) → *doubtful* (the window passed
without a renewal: ``trusted()`` is False, writes are refused here and by Redis) → candidate. A leader believes in
itself only until the start of its last successful attempt + TTL less margin on its own monotonic clock, so that it
stops before another can start; and every write carries the term, so that a leader that was suspended in the middle of
one changes nothing.
"""

from __future__ import annotations

import logging

from fleet._leadership import LostLeadership
from fleet.client import FleetClient
from rewarm.clock import Clock, SystemClock

LEADER_TTL_MS = 5000
MARGIN_MS = 500
"""For what lies between Redis's clock and ours: a script takes its time, clocks drift."""

_log = logging.getLogger("rewarm.fleet.leader")

__all__ = ["LEADER_TTL_MS", "Leader", "LostLeadership"]


class Leader:
    def __init__(
        self,
        client: FleetClient,
        owner: str,
        *,
        ttl_ms: int = LEADER_TTL_MS,
        margin_ms: int = MARGIN_MS,
        clock: Clock | None = None,
    ) -> None:
        self.owner = owner
        self.term: int | None = None  # ours, trusted or not
        self.seen: str | None = None  # who led at the last attempt
        self._client = client
        self._ttl_ms = ttl_ms
        self._margin_ms = margin_ms
        self._clock = clock or SystemClock()
        self._trusted_until_s = float("-inf")

    async def campaign(self) -> int | None:
        """Become or stay leader; call it every second or so. Return the term, or None when another one leads.

        Raise :class:`rewarm.errors.QueueUnavailable` when Redis is out of reach: the trust window then runs on and out.
        """
        started_s = self._clock.monotonic()
        keys = [self._client.keys.leader, self._client.keys.gateways, self._client.keys.pulse]
        term, ours, owner = await self._client.scripts.run("lead", keys, [self.owner, self._ttl_ms])
        self.seen = owner.decode()
        if not ours:
            self._lose(self.seen)
            return None
        if self.term != int(term):
            _log.info("leading owner=%s term=%d", self.owner, int(term))
        self.term = int(term)
        self._trusted_until_s = started_s + (self._ttl_ms - self._margin_ms) / 1000
        return self.term

    def trusted(self) -> bool:
        """May this process decide and write now?"""
        return self.term is not None and self._clock.monotonic() < self._trusted_until_s

    def claim(self) -> tuple[str, int]:
        """(owner, term) for a write. Raise :class:`LostLeadership` outside the trust window."""
        if self.term is None or not self.trusted():
            raise LostLeadership(f"{self.owner} does not lead")
        return self.owner, self.term

    async def resign(self) -> None:
        """End our term now, so that another one need not wait for the TTL. Harmless when it is over already."""
        term, self.term = self.term, None
        self._trusted_until_s = float("-inf")
        if term is not None:
            await self._client.scripts.run("resign", [self._client.keys.leader], [self.owner, term])

    def _lose(self, to: str) -> None:
        if self.term is not None:
            _log.warning("leadership lost owner=%s term=%d to=%s", self.owner, self.term, to)
        self.term = None
        self._trusted_until_s = float("-inf")
