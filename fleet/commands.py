"""What an operator asks for (``rewarm wake | sleep | drain``): kept in Redis until the leader takes it."""

from __future__ import annotations

import logging
from typing import Literal

from fleet._leadership import LostLeadership
from fleet.client import FleetClient
from rewarm.errors import CommandRefused
from rewarm.messages import Command, UnknownSchema, decode, encode

COMMAND_TTL_MS = 60_000
"""A command that no leader took for this long is forgotten: nobody expects it to act any more."""

MAX_COMMANDS = 1000

_log = logging.getLogger("rewarm.fleet.commands")


class Commands:
    def __init__(self, client: FleetClient) -> None:
        self._client = client

    async def send(self, kind: Literal["wake", "sleep", "drain"], target: str) -> None:
        """Raise :class:`CommandRefused` when too many wait, because no leader takes them."""
        command = Command(kind=kind, target=target, at_ms=await self._client.time_ms())
        keys = [self._client.keys.commands, self._client.keys.bell]
        if not await self._client.scripts.run("send", keys, [encode(command), COMMAND_TTL_MS, MAX_COMMANDS]):
            raise CommandRefused(f"{MAX_COMMANDS} commands wait already: no gateway with a controller takes them")

    async def take(self, leader: str, term: int) -> list[Command]:
        """All that wait, each once, oldest first. Raise :class:`LostLeadership` when the term is over."""
        keys = [self._client.keys.leader, self._client.keys.commands]
        taken = await self._client.scripts.run("take", keys, [leader, term])
        if isinstance(taken, int):
            raise LostLeadership(f"{leader} no longer leads in term {term}")
        out: dict[Command, None] = {}  # a repeated send is the same command
        for data in taken:
            try:
                out[decode(data, Command)] = None
            except UnknownSchema as error:
                _log.warning("command ignored error=%s", error)
        return list(out)
