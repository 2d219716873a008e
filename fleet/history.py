"""How long each phase of a load took on this machine: what later ETAs are computed from."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fleet.client import FleetClient
from rewarm.messages import SCHEMA_VERSION, PhaseHistory, UnknownSchema, decode
from rewarm.states import Tier

DURATIONS_KEPT = 8
HISTORY_TTL_MS = 90 * 24 * 3600 * 1000
"""Since the machine's last load: names of machines that are gone do not pile up."""

_SEPARATOR = "\x1f"  # in no model's name
_log = logging.getLogger("rewarm.fleet.history")

PhaseKey = tuple[str, str, str]
"""(model, tier, phase); a step within a phase is told apart by what the worker adds to its name"""


async def read(client: FleetClient, worker: str) -> dict[PhaseKey, tuple[float, ...]]:
    """The last durations in seconds, oldest first."""
    fields = await client.call("HGETALL", client.keys.history(worker))
    out: dict[PhaseKey, tuple[float, ...]] = {}
    for field, data in fields.items():
        model, tier, phase = field.decode().split(_SEPARATOR)
        try:
            out[model, tier, phase] = decode(data, PhaseHistory).seconds
        except UnknownSchema as error:
            _log.warning("history ignored worker=%s model=%s phase=%s error=%s", worker, model, phase, error)
    return out


async def record(client: FleetClient, worker: str, model: str, tier: Tier | str, seconds: Mapping[str, float]) -> None:
    """One more duration of each phase (or step of a phase) of one load, in one round trip."""
    key = client.keys.history(worker)
    await client.scripts.run_many(
        "remember",
        [
            (
                [key],
                [_SEPARATOR.join((model, str(tier), name)), took, SCHEMA_VERSION, DURATIONS_KEPT, HISTORY_TTL_MS],
            )
            for name, took in seconds.items()
        ],
    )
