"""The agent's side of a gate's control routes, over the replica's unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from rewarm.upstream import UpstreamError, UpstreamPool
from worker.gate.gate import CONTROL_PREFIX
from worker.report import GateState

_T = TypeVar("_T")
_TIMEOUT_S = 2.0
_LIMIT = 1024 * 1024


class GateUnreachable(Exception):
    """The gate did not answer, or not as a gate: its host is gone, stopped or stuck."""


class _Reply(msgspec.Struct, frozen=True):
    grants: tuple[str, ...] = ()


class GateControl:
    """All methods raise GateUnreachable, within ``timeout_s``."""

    def __init__(self, pool: UpstreamPool, path: Path, token: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._pool = pool
        self._endpoint = f"unix:{path}"
        self._headers = [(b"X-Rewarm-Control", token.encode()), (b"Content-Type", b"application/json")]
        self._timeout_s = timeout_s

    async def reserve(self, slots: int) -> tuple[tuple[str, ...], GateState]:
        """At most ``slots`` grant ids, each a slot that is kept for about three seconds."""
        raw = await self._call("POST", "reserve", {"slots": slots})
        return _decode(raw, _Reply).grants, _decode(raw, GateState)

    async def release(self, grants: Sequence[str]) -> GateState:
        return _decode(await self._call("POST", "release", {"grants": list(grants)}), GateState)

    async def state(self) -> GateState:
        return _decode(await self._call("GET", "state", None), GateState)

    async def set_waiting_band(self, band: int | None) -> GateState:
        return _decode(await self._call("POST", "state", {"waiting_band": band}), GateState)

    async def drain(self, if_last_activity_s: float | None = None) -> GateState:
        """Close the gate to new requests; with a condition, the answer's ``draining`` says whether it held."""
        fields: dict[str, object] = {"draining": True, "if_last_activity_s": if_last_activity_s}
        return _decode(await self._call("POST", "state", fields), GateState)

    async def sleep(self, level: int, if_last_activity_s: float | None, *, may_wake: bool) -> GateState:
        """Begin to fall asleep; the answer's ``rest`` says whether it does. ``may_wake``: a request may wake it."""
        fields: dict[str, object] = {"level": level, "if_last_activity_s": if_last_activity_s, "may_wake": may_wake}
        return _decode(await self._call("POST", "sleep", fields), GateState)

    async def wake(self) -> GateState:
        """Begin to wake. Reports say when it is done."""
        return _decode(await self._call("POST", "wake", {}), GateState)

    async def let_wake(self, may_wake: bool) -> GateState:
        """Whether a request may wake it. The answer's ``rest`` says whether one has already."""
        return _decode(await self._call("POST", "state", {"may_wake": may_wake}), GateState)

    async def undrain(self) -> GateState:
        return _decode(await self._call("POST", "state", {"draining": False}), GateState)

    async def _call(self, method: str, action: str, fields: dict[str, object] | None) -> bytes:
        body = b"" if fields is None else json.dumps(fields).encode()
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._pool.request(
                    self._endpoint, method, CONTROL_PREFIX + action, self._headers, body
                )
                raw = await response.read(_LIMIT)
        except UpstreamError as error:
            raise GateUnreachable(f"{self._endpoint}: {error}") from error
        except TimeoutError as error:
            raise GateUnreachable(f"{self._endpoint}: no answer within {self._timeout_s} s") from error
        if response.status != 200:
            raise GateUnreachable(f"{self._endpoint}: status {response.status} to {action}: {raw[:200]!r}")
        return raw


def _decode(raw: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise GateUnreachable(f"not a gate's answer: {error}") from error
