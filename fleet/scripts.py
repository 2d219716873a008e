"""The Lua scripts as typed functions. Nothing else in the room runs Lua, and no script is run from elsewhere.

``lua/_lib.lua`` is put before every script. ``ARGV[1]`` is always the clock offset: 0 in production, set by tests so
that deadlines pass without anybody sleeping. Scripts are run by digest; a server that does not know one (it restarted,
or ``SCRIPT FLUSH``) is sent the source. Every key a script touches is in its ``KEYS``: where a script cannot know its
keys before it looks (a claim, a reap), the caller looks first and the script checks what it was told.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio import Redis

from fleet._errors import translated
from fleet._wire import execute, repeated
from fleet.keys import ALL_BANDS, Keys

Args = Sequence[str | bytes | int | float]
ArgList = list[str | bytes | int | float]
Call = tuple[Sequence[str], Args]


@functools.cache
def sources() -> dict[str, str]:
    """Script name → source, the library included; ``<kind>_….lua`` also gets ``_<kind>.lua`` where there is one."""
    folder = resources.files("fleet") / "lua"
    files = {entry.name.removesuffix(".lua"): entry.read_text() for entry in folder.iterdir() if entry.is_file()}
    return {
        name: files["_lib"] + files.get("_" + name.partition("_")[0], "") + text
        for name, text in files.items()
        if not name.startswith("_")
    }


def _digest(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()  # EVALSHA's own choice


class Scripts:
    def __init__(self, redis: Redis, keys: Keys, source: Mapping[str, str] | None = None) -> None:
        self.clock_offset_ms = 0
        self._redis = redis
        self._keys = keys
        self.use(source or sources())

    def use(self, source: Mapping[str, str]) -> None:
        """Run these sources from now on (tests replace them to see that a broken script is noticed)."""
        self._source = dict(source)
        self._digest = {name: _digest(text) for name, text in source.items()}

    async def run(self, name: str, keys: Sequence[str], args: Args) -> Any:
        """One script, atomically. Raise :class:`QueueUnavailable` where Redis is out of reach or refuses."""
        with translated():
            return await repeated(lambda: self._evaluate(name, keys, args))

    async def run_many(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """The same script for many key sets in one round trip; each call is atomic, all together are not."""
        if not calls:
            return []
        digest = self._digest[name]

        async def send() -> list[Any]:
            if not (await execute(self._redis, "SCRIPT EXISTS", digest))[0]:
                await execute(self._redis, "SCRIPT LOAD", self._source[name])
            async with self._redis.pipeline(transaction=False) as pipe:
                for keys, args in calls:
                    pipe.execute_command("EVALSHA", digest, len(keys), *keys, self.clock_offset_ms, *args)
                out: list[Any] = await pipe.execute()
                return out

        with translated():
            return await repeated(send)

    async def _evaluate(self, name: str, keys: Sequence[str], args: Args) -> Any:
        parameters = (len(keys), *keys, self.clock_offset_ms, *args)
        try:
            return await execute(self._redis, "EVALSHA", self._digest[name], *parameters)
        except redis_errors.NoScriptError:
            return await execute(self._redis, "EVAL", self._source[name], *parameters)

    # --- the places a ticket can be in, in the order every script of tickets declares them ---------------------------

    def place_keys(self, ticket: str, model: str, band: int, gateway: str) -> list[str]:
        k = self._keys
        return [
            k.ticket(ticket),
            k.lease,
            k.ready(model, band),
            k.virtual_time(model, band),
            k.since(model),
            k.held(gateway),
            k.gateways,
            k.pulse,
        ]

    def band_keys(self, model: str) -> list[str]:
        """The ready sets of all bands, then their virtual times."""
        return [
            *(self._keys.ready(model, band) for band in ALL_BANDS),
            *(self._keys.virtual_time(model, band) for band in ALL_BANDS),
        ]
